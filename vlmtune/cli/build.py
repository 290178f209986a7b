"""`vlmtune build`: writes a corpus.

In: a builder and its arguments. Out: shards with a manifest. It never changes a finished build.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from vlmtune.cli.plugins import find, make, read_yaml
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json


def run(options: argparse.Namespace) -> None:
    """Builds the corpus `options.corpus` into `options.out`."""
    from data_builders.shard_builder import Builder  # vlmtune works without the builders

    source = find("builders", options.corpus)
    given = [] if options.config is None else changes(Path(options.config))
    arguments: list[str] = options.overrides
    if arguments and not arguments[0].startswith("-"):  # `vlmtune build table FILE`
        arguments = [f"--path={arguments[0]}", *arguments[1:]]
    builder: Any = make(Builder, source, [*given, *arguments])  # type: ignore[type-abstract]
    builder.build(options.out)
    manifest = read_json(options.out / "manifest.json", "a manifest")
    records = sum(shard["records"] for shard in manifest["shards"])
    counts = [f"{len(manifest['shards'])} shards, {records} records"] if manifest["shards"] else []
    counts += [f"{name} {count}" for name, count in sorted(manifest["counts"].items())]
    print(f"{options.out}: {', '.join(counts) or 'built'}")


def changes(path: Path) -> list[str]:
    """The arguments a YAML gives, as overrides."""
    content = read_yaml(path)
    content = content.get("init_args", content) if isinstance(content, dict) else content
    if not isinstance(content, dict):
        raise UserError(f"expected arguments of a builder in {path}, got {content!r}: correct it")
    # A quoted string would keep its quotes where a path is expected.
    return [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in content.items()
        if key != "class_path"
    ]
