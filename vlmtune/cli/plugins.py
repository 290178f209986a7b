"""From names on the command line to objects: plug-ins, benchmarks, models, devices.

In: stems, YAMLs, class paths, names of models. Out: objects. Never: work before an unknown key or a
wrong value is reported.
"""

import argparse
import contextlib
import difflib
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser

from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.explain import configuration_error
from vlmtune.cli.nulls import with_nulls
from vlmtune.cli.option_names import renamed_option
from vlmtune.cli.yaml_files import check_yaml, read_yaml
from vlmtune.config import Configured, find_path, stems
from vlmtune.data.tables import is_dataset
from vlmtune.errors import UserError
from vlmtune.model import load
from vlmtune.model.model import Model

T = TypeVar("T", bound=Configured)
NAME = "plugin"
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")  # a .json file is a plug-in
ALIGNED = re.compile(rf"^( +)--{NAME}\.(.*?)(  +)(\S)")  # an option with its help on the same line

# An option without a dot; one with a dot is a key of a config and keeps its underscores.
OPTION = re.compile(r"--\w+\b(?!\.\w)")


def make(base: type[T], source: str, overrides: Sequence[str] = ()) -> T:
    """Makes a plug-in of the kind `base`.

    `source` is the path of a YAML with `class_path` and `init_args`, a class path, or JSON, and
    `overrides` are `--key value` or `--key=value` for its arguments.
    """
    parser = _parser(base)
    prefixed = []
    for word in overrides:
        word = renamed_option(word, "-", "_")
        if word.startswith("--"):
            word = f"--{NAME}.{word[2:]}"
        prefixed.append(word)
    with _parsing():
        parsed = parser.parse_args([f"--{NAME}={source}", *with_nulls(prefixed, NAME)])
    return parser.instantiate(parsed)[NAME]


def _parser(base: type[Configured]) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_subclass_arguments(base, NAME, required=True, fail_untyped=False)
    return parser


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Makes one line of what the parser refuses, under the names that were typed."""
    try:
        yield
    except argparse.ArgumentError as error:
        line = str(configuration_error(error, ()))
        line = line.replace(f"{NAME}: ", "").replace(f"{NAME}.", "")
        raise UserError(line) from error


def arguments_of(base: type[Configured], source: str) -> str:
    """Describes the arguments of a plug-in; `source` is the path of a YAML, or a class path."""
    path = class_path_of(source)
    parser = _parser(base)
    printed = io.StringIO()
    # jsonargparse prints the help and exits.
    with _parsing(), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        parser.parse_args([f"--{NAME}.help={path}"])
    _, _, text = printed.getvalue().split("\n\n", 2)  # usage, "Help for"
    # Without the prefix, the help of an option moves to the left: spaces take its place.
    prefix = f"{NAME}."
    aligned = rf"\1--\2\3{' ' * len(prefix)}\4"
    lines = [ALIGNED.sub(aligned, line) for line in text.splitlines()]
    text = "\n".join(lines).replace(f"--{prefix}", "--")
    return OPTION.sub(lambda option: option[0].replace("_", "-"), text)


def class_path_of(source: str) -> Any:
    """The class path in the YAML of a plug-in, or `source` if it is not a file."""
    file = Path(source)
    return read_yaml(file).get("class_path") if file.is_file() else source


def find(kind: str, name: str) -> str:
    """Returns a path or a class path unchanged, and for a stem in `configs/plugins` its YAML."""
    # Configs that come with vlmtune are found from any working directory.
    shipped = find_path(name) if name.startswith("configs/") else None
    if shipped is not None:
        return str(shipped)
    path = Path(name)
    if path.is_file() or is_dataset(path):
        if path.is_file() and name.endswith((".yaml", ".yml", ".json")):
            check_yaml(name)
        return name
    if kind == "benchmarks" and name.lower().endswith(TABLE_SUFFIXES):
        raise UserError(f"expected the table {name!r}, there is no such file: correct the path")
    folder = Path("configs/plugins", kind)
    if yaml_of_stem := find_path(folder / f"{name}.yaml"):
        return str(yaml_of_stem)
    is_file_name = "/" in name or name.endswith((".yaml", ".yml"))
    if "." in name and not is_file_name:
        return name  # a class path
    # The nearest name comes first, as most mistakes are misspellings.
    known = stems(kind)
    near = difflib.get_close_matches(path.stem, known, 1)
    advice = f"did you mean {near[0]!r}? Others" if near else "name one of these"
    if is_file_name:
        advice = f"there is no such file; {advice}"
    raise UserError(
        f"expected a YAML or a name, got {name!r}: {advice}: {', '.join(known) or folder}"
    )


def make_benchmarks(names: Sequence[str], table_options: Sequence[str] = ()) -> list[Benchmark]:
    """Makes the benchmarks of several YAMLs, each with one benchmark or a list, or of tables.

    An item of a list is a benchmark, or the path of its YAML relative to the list. `table_options`
    are `--key=value` for the benchmarks of tables.
    """
    benchmarks: list[Benchmark] = []
    for name in names:
        for stem in _served(name):
            path = find("benchmarks", stem)
            if is_table(path):
                benchmarks.append(_of_table(Path(path), table_options))
                continue
            for source in _sources(path):
                benchmarks.append(make(Benchmark, source))  # type: ignore[type-abstract]
    return benchmarks


def is_table(name: str) -> bool:
    """Whether a benchmark is a table of the user's."""
    return name.lower().endswith(TABLE_SUFFIXES) or is_dataset(Path(name))


def _of_table(path: Path, options: Sequence[str]) -> Benchmark:
    """The benchmark that fits the columns of a table."""
    from vlmtune.benchmarks.table_files import kind_of_table  # plug-ins need no table

    def benchmark_of(kind: str) -> Any:
        arguments = {"path": str(path), "name": path.stem}
        spec = json.dumps({"class_path": kind, "init_args": arguments})
        return make(Benchmark, spec, options)  # type: ignore[type-abstract]

    # All benchmarks of tables have these options, and the columns say which of them it is.
    columns = benchmark_of("vlmtune.benchmarks.table_retrieval.TableRetrieval").columns
    return benchmark_of(kind_of_table(path, columns))


def _served(name: str) -> tuple[str, ...]:
    """The benchmarks of a source that `vlmtune download` knows; any other name alone."""
    if "/" in name or name in stems("benchmarks"):
        return (name,)
    from vlmtune.sources.source import sources  # reads many YAMLs

    source = sources().get(name)
    if source is None or not source.serves.benchmarks:
        return (name,)
    return source.serves.benchmarks


def _sources(source: str) -> list[str]:
    path = Path(source)
    content = read_yaml(path) if path.is_file() else None
    if not isinstance(content, list):
        return [source]
    sources = []
    for item in content:
        text = str(path.parent / item) if isinstance(item, str) else json.dumps(item)
        sources.append(text)
    return sources


def model_of(options: argparse.Namespace, *, texts: bool = True, **changed: str | None) -> Model:
    """Loads the model that the options of a command name, on its device; `changed` replaces some.

    `commands` declares the options: model, pretrained, architecture, packages, device, batch_size.
    Random weights are named.
    """
    chosen = argparse.Namespace(**{**vars(options), **changed})
    model = load(
        chosen.model,
        chosen.pretrained,
        architecture=chosen.architecture,
        device=chosen.device,
        batch_size=chosen.batch_size,
        packages=chosen.packages,
        texts=texts,
    )
    if model.backbone.random_weights:
        line = f"{model.backbone.title}: numbers from random weights are meaningless"
        print(f"vlmtune: warning: {line}", file=sys.stderr)
    return model
