"""Which benchmarks of a run may measure images that it trains on.

In: the training sets and the benchmarks of a fit. Out: lines. Never: an image, or a record: what a
manifest says was left out (`measured`) is compared with the files of the benchmarks.

A benchmark whose file names images of another corpus is left out, and so are rendered scenes, whose
training and test images are divided by their build.
"""

import os
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vlmtune.benchmarks.base import Benchmark
from vlmtune.data.rendered import RenderedSet
from vlmtune.data.schema import MANIFEST, Manifest
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, sha256_of

ANNOTATIONS = (".json", ".jsonl", ".csv", ".tsv")
_RENDERED = (
    "data_builders.worlds.scenes.world.ScenesBuilder",
    "data_builders.worlds.requests.RequestsBuilder",
    "data_builders.corpora.ar4t.AR4TBuilder",
)
_TABLE = "data_builders.corpora.table.TableBuilder"


def unchecked(sets: Sequence[ShardSet], benchmarks: Sequence[Benchmark[Any]]) -> list[str]:
    """Returns a line for each set that may hold images of benchmarks, or could not be checked."""
    lines = []
    named: dict[Path, Sequence[Any]] = {}  # the images of each file, which several sets ask for
    for data in sets:
        if isinstance(data, RenderedSet):
            continue
        same = [one for one in benchmarks if _has_measured_rows(data, one)]
        others = [one for one in benchmarks if one not in same]
        if same:
            names = ", ".join(benchmark.name for benchmark in same)
            lines.append(
                f"warning: {data.path} trains on images of {names}: measure another split of the "
                "table, or hold images out of training (--held-out of `vlmtune build table`)"
            )
        line = _checked(data, others, named)
        if line:
            lines.append(line)
    return lines


def _checked(
    data: ShardSet, benchmarks: Sequence[Benchmark[Any]], named: dict[Path, Sequence[Any]]
) -> str:
    """The line of a set; empty if it has no images of benchmarks."""
    names: dict[str, None] = {}  # the benchmarks of which the set may have images
    files: dict[str, None] = {}  # of these benchmarks
    try:
        for benchmark in benchmarks:
            for file in _files(benchmark):
                if not _apart(data, benchmark, file, named):
                    names[benchmark.name] = None
                    files[str(file)] = None
    except Exception as error:  # a check that only warns never stops a training
        return (
            f"warning: could not check whether {data.path} has images of benchmarks "
            f"({type(error).__name__}: {error})"
        )
    if not names:
        return ""
    advice = f"build it with --measured '[{','.join(files)}]' to leave them out"
    if not data.manifest.builder.startswith("data_builders."):  # it may lack that option
        advice = f"leave the images of {', '.join(files)} out of it"
    return f"warning: {data.path} may have images of {', '.join(names)}: {advice}"


def _has_measured_rows(data: ShardSet, benchmark: Benchmark[Any]) -> bool:
    """Tells whether a set was built from rows of a table that a benchmark measures."""
    try:
        return _measures_built_rows(data.manifest, benchmark)
    except Exception:  # the benchmark itself reports what is wrong with its table
        return False


def _measures_built_rows(manifest: Manifest, benchmark: Benchmark[Any]) -> bool:
    """Tells whether a benchmark of a table measures rows that a set was built from."""
    # Only benchmarks of tables have loaded these rooms.
    from vlmtune.benchmarks.table_files import TableOptions
    from vlmtune.data.distinct_images import HELD_OUT, TRAIN
    from vlmtune.data.table_rows import Table

    if not isinstance(benchmark, TableOptions) or manifest.builder != _TABLE:
        return False
    built = manifest.arguments
    path = Path(benchmark.path)
    if path.resolve() != Path(built["path"]).resolve():
        is_copy = not path.is_dir() and sha256_of(path) in manifest.sources.values()
        if not is_copy:
            return False
    if built["held_out"] or benchmark.held_out:
        # Digests of the images decide, so a larger part that is held out includes a smaller one.
        trained = built["splits"] or [TRAIN]
        measured_part = benchmark.held_out or 1.0
        return measured_part > built["held_out"] or HELD_OUT in trained
    for columns in (built["columns"], benchmark.columns):
        # Without a split column all rows are built, or measured.
        if not Table(path, None, columns).columns["split"]:
            return True
    return _measures_built_split(built["splits"], benchmark)


def _measures_built_split(built: Sequence[str] | None, benchmark: Any) -> bool:
    """Tells whether a benchmark of a table measures one of the splits that were built."""
    from vlmtune.benchmarks.table_files import TEST_SPLITS
    from vlmtune.data.distinct_images import TRAINING
    from vlmtune.data.table_rows import Table

    trained = {split.lower() for split in built or TRAINING}
    measured = benchmark.splits
    if measured is None and not trained.isdisjoint(TEST_SPLITS):
        # The first one that the table has is measured.
        images = None if benchmark.images is None else Path(benchmark.images)
        rows = Table(Path(benchmark.path), images, benchmark.columns).rows()
        known = {row.split for row in rows}
        measured = [split for split in TEST_SPLITS if split in known][:1]
    measured_lower = {split.lower() for split in measured or ()}
    return not trained.isdisjoint(measured_lower)


def _apart(
    data: ShardSet, benchmark: Benchmark[Any], file: Path, named: dict[Path, Sequence[Any]]
) -> bool:
    """Tells whether a set cannot have images of a benchmark's file or folder, or left them out."""
    folder = data.folder
    manifest = data.manifest
    # A benchmark of the build itself was divided from its training by the builder.
    build = _build(file)
    is_of_build = build is not None and build[0] == folder.resolve()
    if not file.exists() or is_of_build:
        return True
    # Builds of rendered scenes keep training and test images apart themselves.
    if _rendered(folder) or _rendered(file):
        return True
    if getattr(benchmark, "split", None) in (manifest.arguments.get("splits") or ()):
        return False

    # Whoever built the set may have left out the images of this file, or built it from this file.
    left_out = manifest.arguments.get("measured") or ()
    measured = {Path(path).resolve() for path in left_out}
    if not measured.isdisjoint(_folders(file)):
        return True
    annotations = []
    if hasattr(benchmark, "path"):
        annotations = [file]
        if not file.is_file():
            annotations = sorted(one for one in file.glob("*") if one.suffix in ANNOTATIONS)
    digests = set(map(sha256_of, annotations))
    if annotations and digests.issubset(manifest.sources.values()):
        return True
    corpus = _corpus(manifest)
    return not any(_may_show(path, corpus, named) for path in annotations or [file])


def _may_show(file: Path, corpus: str | None, named: dict[Path, Sequence[Any]]) -> bool:
    """Tells whether a benchmark's file, or folder of images, may show images of a corpus."""
    from data_builders.measured import image_names, overlap

    if corpus is None:
        return True
    if file.is_dir():  # folders of classes
        return False
    try:
        if file not in named:
            named[file] = image_names(file)
    except UserError:  # a table that only another reader knows
        return True
    for name in named[file]:
        if name.corpus and overlap(name.corpus, corpus):
            return True
        # Corpora of photographs name their images by numbers.
        if not name.corpus and name.stem.isdigit():
            return True
    return False


def _corpus(manifest: Manifest) -> str | None:
    """The corpus of a set's images; None if its builder and its reader do not say it."""
    # The builder itself knows its corpus, or its reader of annotations does.
    paths = [manifest.builder]
    reader = manifest.arguments.get("annotations")
    if isinstance(reader, dict):
        paths.append(reader.get("class_path", ""))
    for path in paths:
        if path.startswith("data_builders."):
            corpus = getattr(pkgutil.resolve_name(path), "corpus", None)
            if corpus is not None:
                return corpus
    return None


def _files(benchmark: Benchmark[Any]) -> Iterator[Path]:
    """The annotation files of a benchmark, or folders of them; of classes those of images."""
    paths = getattr(benchmark, "path", None) or getattr(benchmark, "images", None) or ()
    if isinstance(paths, dict):
        paths = paths.values()
    elif isinstance(paths, str):
        paths = [paths]
    yield from map(Path, paths)


def _rendered(path: Path) -> bool:
    """Tells whether a build rendered what lies at a path, or was made from such scenes."""
    build = _build(path)
    if build is None:
        return False
    folder, manifest = build
    if manifest["builder"] in _RENDERED:
        return True
    # What a builder leaves out says nothing of where its images come from.
    arguments = dict(manifest.get("arguments") or {})
    for name in ("measured", "exclude"):
        arguments.pop(name, None)
    for text in _texts(arguments):
        source = Path(text)
        # The build itself would lead back here without end.
        is_other_build = os.path.exists(source) and folder not in _folders(source)
        if is_other_build and _rendered(source):
            return True
    return False


def _build(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder and the manifest of the build in which a path lies; None if it lies in none."""
    for folder in _folders(path):
        if (folder / MANIFEST).is_file():
            content = read_json(folder / MANIFEST, "a manifest")
            if isinstance(content, dict) and "builder" in content:
                return folder, content
    return None


def _folders(path: Path) -> tuple[Path, ...]:
    return (path.resolve(), *path.resolve().parents)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _texts(item)
