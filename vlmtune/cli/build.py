"""`vlmtune build`: writes a corpus.

In: a builder and its arguments. Out: shards with a manifest. Never: a change of a finished build.
"""

import argparse
import inspect
import json
from pathlib import Path
from pydoc import locate
from typing import Any

from vlmtune.cli.plugins import arguments_of, class_path_of, find, make
from vlmtune.cli.yaml_files import read_yaml
from vlmtune.config import find_path, in_data_root
from vlmtune.errors import UserError, counted
from vlmtune.storage.files import check_shape, read_json

TABLES = ("csv", "tsv", "jsonl", "json", "parquet", "arrow")
MERGE = "merge"
MERGE_USAGE = "vlmtune build merge PART [PART ...] --out OUT [--max-left-out FRACTION]"


def run(options: argparse.Namespace) -> None:
    """Builds the corpus `options.corpus` into `options.out`."""
    # Training looks for data/... where `vlmtune download` puts it.
    options.out = in_data_root(options.out)
    from data_builders.parts import PART, merge, read_part  # vlmtune works without the builders

    paper = None
    if options.corpus == MERGE:
        if not options.overrides or any(word.startswith("-") for word in options.overrides):
            raise UserError(
                f"expected the folders of all parts and --out, got {options.overrides}: use "
                f"`{MERGE_USAGE}`"
            )
        merge(list(map(Path, options.overrides)), options.out, options.max_left_out)
    else:
        builder = builder_of(options)
        build(builder, options)
        paper = builder.paper()
    if (options.out / PART).is_file():
        content = read_part(options.out)
        written = []
        for state in content["states"]:
            if state.written.info:
                written.append(state.written.info.records)
        number, count = content["part"]
        print(f"{options.out}: part {number} of {count}, {_sizes(written)}")
        return
    # Of a merge, and of a build of other files, the manifest tells what was written.
    manifest = read_json(options.out / "manifest.json", "a manifest")
    written = [shard["records"] for shard in manifest["shards"]]
    counts = [_sizes(written)] if written else []
    counts += [f"{name} {count}" for name, count in sorted(manifest["counts"].items())]
    if written and (queries := manifest["counts"].get("queries: true")):
        counts.append(f"{queries / sum(written):.1f} queries an image")
    print(f"{options.out}: {', '.join(counts) or 'built'}")
    if paper is not None:
        print(f"paper: {paper}")


def builder_of(options: argparse.Namespace) -> Any:
    """Returns the builder that `options` name, with its arguments."""
    from data_builders.shard_builder import Builder

    _check_corpus(options.corpus)
    source = find("builders", options.corpus)
    words = arguments(source, options.config, options.overrides)
    builder: Any = make(Builder, source, words)  # type: ignore[type-abstract]
    # The default `exclude` of a YAML lists compositions of another world than these annotations.
    if source != options.corpus and _excludes_of_others(builder, words):
        builder = make(Builder, source, [*words, "--exclude=null"])  # type: ignore[type-abstract]
    return builder


def build(builder: Any, options: argparse.Namespace) -> None:
    """Builds the corpus of a builder, or a part of it, into `options.out`."""
    from data_builders.parts import Part
    from data_builders.shard_builder import ShardBuilder

    part = None if options.part is None else Part.parse(options.part)
    if isinstance(builder, ShardBuilder):
        builder.build(
            options.out, workers=options.workers, part=part, max_left_out=options.max_left_out
        )
        return
    if part is not None or options.workers != 1:
        raise UserError(
            f"expected a builder of shards for --workers and --part, {options.corpus} writes other "
            "files: leave them out"
        )
    builder.build(options.out)


def _excludes_of_others(builder: Any, words: list[str]) -> bool:
    """Tells whether a plug-in's default `exclude` is of a world that its annotations are not of."""
    exclude = getattr(builder, "exclude", None)
    keys = [word.partition("=")[0] for word in words]
    if exclude is None or "--exclude" in keys:
        return False
    annotations = Path(builder.annotations.path)
    return exclude.parent not in annotations.parents


def _sizes(records: list[int]) -> str:
    """Describes shards by the number of records in each."""
    shards = len(records)
    total = sum(records)
    return f"{counted(shards, 'shard')}, {counted(total, 'record')}"


def _check_corpus(corpus: str) -> None:
    """Refuses data in place of a builder."""
    path = Path(corpus)
    table = corpus in TABLES or path.suffix[1:] in TABLES
    known = find_path(Path("configs/plugins/builders", f"{corpus}.yaml"))
    if known or not (table or path.is_dir()):
        return
    builder = "table"
    data = corpus
    if path.is_dir():
        builder = "folder"
    elif not path.suffix:
        data = "FILE"
    raise UserError(
        f"expected a builder, got {corpus!r}: use `vlmtune build {builder} {data} --out FOLDER`"
    )


def show_help(corpus: str) -> None:
    """Prints the arguments of a builder."""
    from data_builders.shard_builder import Builder

    if corpus == MERGE:
        print(f"usage: {MERGE_USAGE}\n\nMakes one corpus of all parts of a build.")
        return
    _check_corpus(corpus)
    source = find("builders", corpus)
    text = arguments_of(Builder, source)
    print(f"usage: vlmtune build {corpus} --out OUT [--config YAML] [ARGUMENTS]\n\n{text}")
    # The class has other defaults than the YAML of a stem.
    settings = changes(Path(source)) if Path(source).is_file() else []
    if settings:
        print(f"Unless you name them, {source} sets:")
        for word in settings:
            key, _, value = word.removeprefix("--").partition("=")
            print(f"  {key}: {value}")


def arguments(source: str, config: str | None, words: list[str]) -> list[str]:
    """The overrides of a YAML and of the command line, whose first word may be the builder's file.

    Example:
        >>> builder = "data_builders.corpora.table.TableBuilder"
        >>> arguments(builder, None, ["mine.csv", "--held_out", "0.1"])
        ['--path=mine.csv', '--held_out', '0.1']
    """
    # Words of the command line come last, so they override the YAML's.
    given = [] if config is None else changes(Path(config))
    if words and not words[0].startswith("-"):
        words = [f"--{_first_argument(source)}={words[0]}", *words[1:]]
    return [*given, *words]


def _first_argument(source: str) -> str:
    """The name of a builder's first argument; `path` if there is no such builder."""
    path = class_path_of(source)
    builder = locate(path) if path else None
    if not inspect.isclass(builder):
        return "path"
    parameters = inspect.signature(builder).parameters
    return next(iter(parameters))


def changes(path: Path) -> list[str]:
    """The arguments a YAML gives, as overrides."""
    content = read_yaml(path)
    if isinstance(content, dict):
        content = content.get("init_args", content)
    given = check_shape(content, dict[str, Any], path, "arguments of a builder", "write keys")
    words = []
    for key, value in given.items():
        if key == "class_path":
            continue
        # A quoted string would keep its quotes where a path is expected.
        text = value if isinstance(value, str) else json.dumps(value)
        words.append(f"--{key}={text}")
    return words
