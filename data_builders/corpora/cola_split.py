"""A benchmark's queries and training annotations go in, the split into seen and unseen comes out.

In: labels of Cola's single-object file, annotated training images. Out: two JSON files. Never: a
shard, or a changed benchmark.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt
from typing_extensions import TypedDict, override

from data_builders.corpora.annotations import AnnotatedImage, SceneReader
from data_builders.corpora.cola_images import AnnotatedBuilder
from data_builders.shard_files import all_named
from vlmtune.errors import UserError
from vlmtune.storage.files import check_shape, read_json

LAYOUT = 'Cola\'s single-object benchmark, {"labels": [...], "data": [...]}'
AGAIN = "pass COLA_singleobjects_benchmark_<corpus>.json as distributed"
Text = Annotated[str, Field(min_length=1)]


class _Content(TypedDict):
    """A benchmark file, as far as it is read: the two-object file has no labels."""

    labels: Annotated[list[Text | tuple[list[str], Text]], Field(min_length=1)]
    data: list[list[Any]]


@dataclass(frozen=True)
class _Label:
    """A query: its text in the benchmark's file, and its words in those of the annotations."""

    text: str
    attributes: frozenset[str]
    name: str


class ColaSplitBuilder(AnnotatedBuilder):
    r"""Cola's seen and unseen queries (Ray et al. 2023, section 9).

    A query occurs in a training image if one object has its name and all of its attributes. With
    `unseen` $= n$, the $n$ queries that occur in the fewest training images are unseen (GQA: 150 of
    320). Without, those that occur in none are (PACO: the attributes are never a subset of that
    object's; CLEVR-CoGenT: condition B). Ties go by the alphabet; the paper names no rule.

    Writes `seen.json`, `{"seen": [label, ...], "unseen": [...]}` for `seen` of the benchmark, and
    `exclude.json`, `{"unseen": [[[attribute, ...], object], ...], "images": [id, ...]}` for
    `exclude` of `build cola`: the unseen compositions, and the training images that show one.

    Args:
        benchmark: `COLA_singleobjects_benchmark_<corpus>.json`.
        annotations: The reader of the training annotations.
        unseen: Number of unseen queries; None for all that training never shows.
        apart: Objects whose queries are neither seen nor unseen (CLEVR: spheres).
        measured: Files of benchmarks, or folders of them; training leaves out the images they name,
            so they show no query. Pass what `build cola` gets.
    """

    idle: ClassVar[Mapping[str, Any]] = {"measured": []}

    def __init__(self, benchmark: Path, annotations: SceneReader,
                 unseen: PositiveInt | None = None, apart: Sequence[str] = (),
                 measured: Sequence[Path] = ()) -> None:  # fmt: skip
        self.choose(annotations, measured)
        self.benchmark, self.unseen, self.apart = Path(benchmark), unseen, tuple(apart)

    @override
    def sources(self) -> Mapping[str, Path]:
        return all_named(super().sources(), {self.benchmark.name: self.benchmark})

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        images, _ = self.kept()
        names = {obj.name for image in images for obj in image.objects}
        labels = [_label(label, names) for label in _read_labels(self.benchmark)]
        shown = _images_of(labels, images)
        compared = [label for label in labels if label.name not in self.apart]
        order = sorted(compared, key=lambda label: (len(shown[label]), label.text))
        never = [label for label in order if not shown[label]]
        if self.unseen is not None and self.unseen > len(order):
            raise UserError(
                f"expected at most {len(order)} unseen queries, as many as {self.benchmark} has, "
                f"got {self.unseen}: lower it"
            )
        unseen = never if self.unseen is None else order[: self.unseen]
        seen = order[len(unseen) :]  # `never` comes first in the order, too
        removed = sorted(frozenset[str]().union(*(shown[label] for label in unseen)))
        texts = {"seen": _texts(seen), "unseen": _texts(unseen)}
        compositions = sorted([sorted(label.attributes), label.name] for label in unseen)
        _write(folder / "seen.json", texts)
        _write(folder / "exclude.json", {"unseen": compositions, "images": removed})
        self.counts["queries: seen"] = len(seen)
        self.counts["queries: unseen"] = len(unseen)
        self.counts["queries: in no training image"] = len(never)
        self.counts["training images"] = len(images)
        self.counts["training images with an unseen query"] = len(removed)
        tick()


def _read_labels(path: Path) -> list[Any]:
    """The labels of the file, in either of its two layouts (`vlmtune.benchmarks.cola_files`)."""
    raw = read_json(path, LAYOUT, AGAIN)
    if isinstance(raw, list) and len(raw) == 2:
        raw = {"labels": raw[0], "data": raw[1]}
    return check_shape(raw, _Content, path, LAYOUT, AGAIN)["labels"]


def _label(label: Any, names: set[str]) -> _Label:
    if not isinstance(label, str):
        *attributes, name = [word for word in (*label[0], label[1]) if word]
        stated = frozenset(map(_plain, attributes))
        return _Label(" ".join([*attributes, name]), stated, _noun(name, names))
    words = label.split()
    # The longest end that is a known object: "dining table" before "table".
    first = len(words) - 1
    for k in range(len(words)):
        if _noun(" ".join(words[k:]), names) in names:
            first = k
            break
    attributes = frozenset(map(_plain, words[:first]))
    return _Label(label, attributes, _noun(" ".join(words[first:]), names))


def _noun(name: str, names: set[str]) -> str:
    """The object's name as the annotations have it: PACO's qualifiers are left out of most."""
    full = _plain(name)
    return full if full in names else _plain(re.sub(r"\([^()]*\)", " ", name))


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("_", " ").split())


def _images_of(
    labels: Sequence[_Label], images: Iterable[AnnotatedImage]
) -> dict[_Label, frozenset[str]]:
    """The training images that each query is true of."""
    objects: dict[str, list[tuple[frozenset[str], str]]] = defaultdict(list)
    for image in images:
        for obj in image.objects:
            objects[obj.name].append((obj.attributes, image.id))
    shown: dict[_Label, frozenset[str]] = {}
    for label in labels:
        named = objects[label.name]
        shown[label] = frozenset(image for words, image in named if label.attributes <= words)
    return shown


def _texts(labels: Iterable[_Label]) -> list[str]:
    return sorted(label.text for label in labels)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
