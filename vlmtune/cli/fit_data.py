"""`vlmtune fit --data` with data, not a config: a table, a folder, tars, a data set of the hub.

In: the words of a command line. Out: the same words with shards, built as `vlmtune build table`
builds them. Never: a second build of the same table.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pytorch_lightning.utilities.rank_zero import rank_zero_only

from vlmtune.cli.build import TABLES, build, builder_of
from vlmtune.cli.commands import command_parser
from vlmtune.cli.option_names import (
    given_options,
    naming_table_options,
    renamed_option,
    table_options,
)
from vlmtune.config import find_path
from vlmtune.data.named_tars import COMMAND, gathered
from vlmtune.data.schema import MANIFEST, read_manifest
from vlmtune.data.shards import names_tars
from vlmtune.errors import UserError, counted
from vlmtune.storage.files import read_json, reading
from vlmtune.storage.folder import digest
from vlmtune.storage.remote.address import is_remote

DATA = "data"
CACHE = ".cache/vlmtune/tables"
HUB = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+?))?/?")


def with_shards(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line with the shards of its `--data` as `--data.train`.

    `--table.KEY` takes the options of `vlmtune build table`. Each `--data` adds a set of
    shards. A `--data` that names a config stays.

    Example:
        >>> with_shards(["--data", "s3://bucket/shards", "--config", "a.yaml"])
        ['--config', 'a.yaml', '--data.train=[{"path": "s3://bucket/shards"}]']
    """
    rest: list[str] = []
    data: list[str] = []
    options, others = table_options(words)
    for given in given_options(others, lambda key: key == DATA):
        if given.key == DATA and _is_data(given.value):
            data.append(given.value)
        elif given.key == DATA and _is_missing(given.value):
            raise UserError(
                f"expected a table, a folder, tars or a config, got --data {given.value}, which is "
                "missing: check the path"
            )
        else:
            rest += given.words
    # Without a table its options stay, so that the parser refuses them.
    if not data:
        return list(words)
    # At the end, as a config after it would win.
    sets = [{"path": _shards(value, options)} for value in data]
    return [*rest, f"--{DATA}.train={json.dumps(sets)}"]


def _is_data(value: str) -> bool:
    """Whether a `--data` names data, and not a config."""
    if names_tars(value) or is_remote(value):
        return True
    path = Path(value).expanduser()
    suffix = path.suffix.lower()
    if suffix == ".json" and path.is_file():
        return _holds_rows(path)
    is_table = suffix[1:] in TABLES and suffix != ".json"
    return is_table or path.is_dir()


def _is_missing(value: str) -> bool:
    """Whether a `--data` is the path of nothing; a name with dots may be a class."""
    is_path = "/" in value or "." not in value or _is_file_name(value)
    return is_path and value[:1] not in ("{", "") and find_path(value) is None


def _is_file_name(value: str) -> bool:
    """Whether a name with a dot, such as a misspelt `mine.cvs`, is neither a config nor a class."""
    first = value.partition(".")[0]
    is_config = value.endswith((".yaml", ".yml", ".json"))
    is_word = re.fullmatch(r"[\w-]+", first) is not None
    return is_word and not is_config and find_spec(first) is None


def _holds_rows(path: Path) -> bool:
    """Whether a JSON file is a table, or captions of COCO, which the table's reader refuses."""
    content = read_json(path, "a table or a config")
    if isinstance(content, list):
        return True
    if not content or not isinstance(content, dict):
        return False
    # A config names a class or has a list of sets, so not all of its values are objects.
    rows = [isinstance(value, dict) for value in content.values()]
    return all(rows) or isinstance(content.get("images"), list)


def _shards(value: str, options: Sequence[str]) -> str:
    """The path of the shards of a `--data`."""
    if value.startswith(COMMAND):
        return _from_home(gathered(value, commands=True))
    if names_tars(value):
        return value
    path = Path(value).expanduser()
    if is_remote(value):
        on_hub = _hub_tables(value)
        if on_hub is None:
            return value
        path = on_hub
    elif (path / MANIFEST).is_file() or any(path.glob("*.tar")):
        return str(path)
    return _from_home(_built(path, value, options))


def _from_home(path: Path) -> str:
    """The path with ~ for the home folder, as it comes into exports that are published."""
    return str("~" / path.relative_to(Path.home()))


def _hub_tables(value: str) -> Path | None:
    """The local copy of the Parquet files of a data set of the hub; None if it has none."""
    match = HUB.fullmatch(value)
    if match is None:
        return None
    from huggingface_hub import snapshot_download  # a table of this machine does not need it

    name, revision, folder = match.groups()
    files = f"{folder}/*.parquet" if folder else "*.parquet"
    fix = "check the name, the revision and the network"
    with reading(value, "a data set on the Hugging Face hub", fix):
        options = {"repo_type": "dataset", "revision": revision, "allow_patterns": files}
        path = Path(snapshot_download(name, **options), folder or "")
    return path if any(path.rglob("*.parquet")) else None


@naming_table_options()
def _built(path: Path, name: str, options: Sequence[str]) -> Path:
    """The folder of the shards of a table, built unless it was before."""
    # Parsed as a command, so that options mean the same as there.
    dashed = [renamed_option(option, "_", "-") for option in options]
    words = ["build", "table", str(path), "--out", CACHE, *dashed]
    parsed, overrides = command_parser().parse_known_args(words)
    parsed.overrides = overrides
    builder = builder_of(parsed)
    # Names are relative: the same ones in two folders are two tables.
    folders = [os.path.abspath(path), os.path.abspath(builder.table.folder)]
    key = digest({**builder.identity(), "folders": folders})
    # The digest names the build; the stem is for people who look into the folder.
    stem = re.sub(r"[^\w.\-]", "_", Path(name).stem)
    out = Path.home() / CACHE / f"{stem}-{key[:16]}"
    parsed.out = out
    if (out / MANIFEST).is_file():
        # A build says this itself.
        line = f"{builder.table.summary()}\nbuilt before, in {out}"
    else:
        build(builder, parsed)
        line = f"built into {out} (delete it to build anew)"
    manifest = read_manifest(out)
    line += f": {counted(manifest.records, 'group')} of {name}"
    skipped = [kind for kind in sorted(manifest.counts) if kind.startswith("skipped")]
    for kind in skipped:
        line += f", {kind} {manifest.counts[kind]}"
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(line, file=sys.stderr)
    return out
