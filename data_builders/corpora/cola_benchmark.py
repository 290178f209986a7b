"""Annotated images go in, a benchmark file of single-object queries comes out.

In: scene annotations. Out: one JSON file in the layout of Cola's. Never: an image, or a shard.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import AnnotatedImage, AnnotatedObject, SceneReader
from data_builders.corpora.cola_images import AnnotatedBuilder
from vlmtune.errors import UserError

BENCHMARK = "COLA_singleobjects_benchmark.json"
Label = tuple[tuple[str, ...], str]  # attributes, object


class ColaBenchmarkBuilder(AnnotatedBuilder):
    r"""Single-object queries of annotations, by number of attributes (Cola, section 3, figure 5).

    For each number $n$ of `attributes`, the queries are the attribute sets of size $n$ on an object
    that occur in the most images. A query $a_1 \dots a_n\ o$ is true of an image where one object
    is an $o$ with all of $a_1, \dots, a_n$; the image is a hard one where any of these words is
    true of any object. Ties in frequency go by the alphabet. Images with no word of any query are
    left out.

    Writes `COLA_singleobjects_benchmark.json`, `{"labels": [[attributes, object], ...], "data":
    [[image, annotation, label, hard], ...]}`, which `cola_single` reads and `cola_split` splits.
    Cola has no development data; its own test data have 320 queries for GQA, 96 for CLEVR (all with
    three attributes) and 400 for PACO.

    Args:
        annotations: The reader of the scene annotations. Of scenes the reader's
            `single` says which attributes are stated.
        attributes: Numbers of attributes of a query.
        queries: Maximum number of queries for each number of attributes; None for all.
        measured: Files of benchmarks, or folders of them; the images they name are left out.
    """

    def __init__(self, annotations: SceneReader,
                 attributes: Sequence[PositiveInt] = (1, 2, 3), queries: PositiveInt | None = 100,
                 measured: Sequence[Path] = ()) -> None:  # fmt: skip
        self.choose(annotations, measured)
        self.attributes, self.queries = tuple(sorted(set(attributes))), queries

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        images, _ = self.kept()
        labels = [label for n in self.attributes for label in self._labels(images, n)]
        if not labels:
            raise UserError(
                f"expected objects with {' or '.join(map(str, self.attributes))} attributes, got "
                "none: lower `attributes`, or check the annotation files"
            )
        data = []
        for image in images:
            row = self._row(image, labels)
            if row is None:
                self.counts["skipped: no word of a query"] += 1
            else:
                data.append(row)
                tick()
        self.counts["images"] = len(data)
        content = {"labels": [[list(words), name] for words, name in labels], "data": data}
        (folder / BENCHMARK).write_text(json.dumps(content) + "\n")

    def _labels(self, images: Sequence[AnnotatedImage], number: int) -> list[Label]:
        """The most frequent compositions of a number of attributes."""
        times: Counter[Label] = Counter()
        for image in images:
            shown: set[Label] = set()
            for obj in image.objects:
                subsets = itertools.combinations(self._words(obj), number)
                shown.update((self.annotations.spelled(words), obj.name) for words in subsets)
            times.update(shown)
        order = sorted(times, key=lambda label: (-times[label], label))[: self.queries]
        self.counts[f"queries: {number} attributes"] = len(order)
        return order

    def _words(self, obj: AnnotatedObject) -> Sequence[str]:
        # In scenes each attribute has its kind, and queries state the kinds of `single` alone.
        return obj.single if self.annotations.exhaustive else sorted(obj.attributes)

    def _row(self, image: AnnotatedImage, labels: Sequence[Label]) -> list[Any] | None:
        annotation: list[list[Any]] = []
        present: set[str] = set()
        for obj in image.objects:
            words = self._words(obj)
            annotation.append([list(words), obj.name])
            present.update(words, [obj.name])
        true: list[int] = []
        hard: list[int] = []
        for stated, name in labels:
            holds = any(noun == name and set(words) >= set(stated) for words, noun in annotation)
            true.append(int(holds))
            hard.append(int(not present.isdisjoint((*stated, name))))
        if not any(hard):
            return None
        file = image.file.relative_to(self.annotations.folder).as_posix()
        return [file, annotation, true, hard]
