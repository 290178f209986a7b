"""Cola, single-object queries: rank images for "square white plate" among hard distractors.

File: JSON, either `{"labels": [...], "data": [...]}` (as documented) or `[labels, data]` (as the
released script indexes it). A label is a string or `[[attribute, ...], object]`. An entry of
`data` is `[image, annotation, label, hard]` with 0/1 lists `label` and `hard` over the labels;
`annotation` lists the image's objects in the form of the labels; it may be null or absent (PACO).
Source: Ray et al. 2023, sections 3, 5.1 and 10.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, find_images, read_json
from vlmtune.errors import UserError
from vlmtune.metrics.average_precision import ClassPrecision, class_average_precision
from vlmtune.metrics.classification import f1_at_positives
from vlmtune.metrics.intervals import average
from vlmtune.metrics.ranking import mean_ranks
from vlmtune.types import Example, ImageRef, Metric, Result

SHOWN, BEST = 4, 5  # queries of each kind in the gallery, and images for each
LAYOUT = 'a JSON object {"labels": [...], "data": [[image, annotation, label, hard], ...]}'


@dataclass(frozen=True)
class _Items:
    """Images, queries, and which image satisfies, may be confused with, and has all words of one.

    `every` is None where the objects of some image are not annotated.
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    labels: Bool[Tensor, "N C"]
    hard: Bool[Tensor, "N C"]
    every: Bool[Tensor, "N C"] | None
    subsets: dict[str, Bool[Tensor, "C"]]

    @property
    def ranked(self) -> Bool[Tensor, "N C"]:
        """The pairs that some metric besides `standard_map` ranks."""
        ranked = self.hard | self.labels
        return ranked if self.every is None else ranked | self.every


class ColaSingle(Benchmark):
    """Mean average precision of queries over images that hold at least one of their words.

    - `map`: mean over classes of the AP within the hard set (`hard` = 1: an attribute of the query
      on any object, or its object). Classes without a positive anywhere or with an empty hard set
      are left out, and so is a class with positives none of which is in its hard set; the counts
      are metrics (`classes_...`). `map_reference` gives the latter 0, as the released script does.
    - `map_seen`, `map_unseen`: over a part of the classes, with `seen`.
    - `standard_map`: AP over all images.
    - `query_all_map`: AP over images that have all words of the query, on any objects (true ones
      always belong); `mean_rank_true` and `mean_rank_distractor`: mean ranks within that pool, ties
      ranked last, averaged over classes that have both. Only where the objects are annotated.
    - `f1`: within the hard set, the first P images predicted (see `f1_at_positives`).

    Chance is the mean over classes of what random scores reach; intervals resample the classes.

    Args:
        path: The benchmark file.
        images: The folder with the image files; an image is looked up under the path the file
            gives, and where it is not there, under its file name.
        name: Name in reports.
        seen: JSON file `{"seen": [label, ...], "unseen": [label, ...]}`; labels not named count
            only in the whole.
        standard: Also score images outside the hard sets, for `standard_map`. Without it a joint
            model, which pays for each pair, has a fraction of the pairs to score.
    """

    version: ClassVar[str] = "1"
    primary: str = "map"
    citation: ClassVar[str] = "Ray et al. 2023, Cola, sections 3, 5.1 and 10 (single-object mAP)"
    partial_credit: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "cola_single",
        seen: str | None = None,
        standard: bool = True,
    ) -> None:
        self.path, self.folder, self.name = Path(path), Path(images), name
        self.seen = None if seen is None else Path(seen)
        self.standard = standard
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "ColaSingle":
        """Six images, one outside every hard set; three queries, one unseen; all annotated."""
        labels = [[["red"], "cube"], [["blue"], "cube"], [["red"], "cone"]]
        scenes = [
            ([0], ["red cube", "blue cone"]),
            ([1, 2], ["blue cube", "red cone"]),
            ([0], ["red cube"]),
            ([1], ["blue cube", "red ball"]),
            ([2], ["red cone", "blue ball"]),
            ([], ["green ball", "grey disc"]),
        ]
        data = []
        for i, (true, objects) in enumerate(scenes):
            Image.new("RGB", (8, 8), (40 * i, 0, 255 - 40 * i)).save(folder / f"{i}.png")
            pairs = [[[text.split()[0]], text.split()[1]] for text in objects]
            words = {word for text in objects for word in text.split()}
            hard = [int(bool(words & {*attributes, noun})) for attributes, noun in labels]
            data.append([f"{i}.png", pairs, [int(c in true) for c in range(3)], hard])
        path, seen = folder / "cola_single.json", folder / "seen.json"
        path.write_text(json.dumps({"labels": labels, "data": data}), encoding="utf-8")
        seen.write_text(json.dumps({"seen": ["red cube", "red cone"], "unseen": ["blue cube"]}))
        return cls(str(path), str(folder), seen=str(seen))

    def load(self) -> None:
        """Reads the files and finds the images; calling it again does nothing."""
        if self._items is None:
            self._items = self._read()

    def images(self) -> tuple[ImageRef, ...]:
        """The images, in the order of the file."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The queries, in the order of the file."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"] | None:
        """All pairs where `standard_map` is wanted, else those that some other metric ranks."""
        return None if self.standard else self._loaded().ranked.nonzero()

    def truth(self) -> Bool[Tensor, "P"] | Bool[Tensor, "N M"]:
        """The labels."""
        items = self._loaded()
        return items.labels if self.standard else items.labels[items.ranked]

    def evaluate(self, scores: Float[Tensor, "P"] | Float[Tensor, "N M"]) -> Result:
        """Ranks the images for each query."""
        items = self._loaded()
        values = scores.double()
        if not self.standard:
            # No metric reads the others; it would raise if one did.
            values = torch.full(items.labels.shape, torch.nan, dtype=torch.float64)
            values[items.ranked] = scores.double()
        precision = class_average_precision(values, items.labels, items.hard)
        metrics = {"map": _mean(precision)}
        for part, members in items.subsets.items():
            if (members & precision.counted).any():
                metrics[f"map_{part}"] = _mean(precision, members)
        if self.standard:
            every = torch.ones_like(items.hard)
            metrics["standard_map"] = _mean(class_average_precision(values, items.labels, every))
        if items.every is not None:
            metrics |= _query_all(values, items.labels, items.every)
        metrics["f1"] = _f1(values, items, precision)
        metrics["map_reference"] = _mean(
            class_average_precision(values, items.labels, items.hard, "reference")
        )
        metrics |= _left_out(precision)
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=_examples(values, items, precision),
            citation=self.citation,
            outcomes=tuple(precision.values[precision.counted].tolist()),
        )

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        raw = read_json(self.path, LAYOUT)
        labels, data = self._parts(raw)
        entries = [self._entry(i, entry, len(labels)) for i, entry in enumerate(data)]
        texts = tuple(" ".join(filter(None, self._atoms(label))) for label in labels)
        if len(set(texts)) != len(texts):
            raise self._wrong("the same label twice")
        names = [self._locate(entry[0]) for entry in entries]
        if len(set(names)) != len(names):
            raise self._wrong("the same image twice")
        annotations = [entry[1] for entry in entries]
        return _Items(
            images=find_images(self.folder, names),
            texts=texts,
            labels=torch.tensor([entry[2] for entry in entries], dtype=torch.bool),
            hard=torch.tensor([entry[3] for entry in entries], dtype=torch.bool),
            every=self._has_every_word(labels, annotations),
            subsets={} if self.seen is None else _subsets(self.seen, texts),
        )

    def _parts(self, raw: Any) -> tuple[list[Any], list[Any]]:
        """Labels and data of either layout."""
        if isinstance(raw, dict) and {"labels", "data"} <= raw.keys():
            labels, data = raw["labels"], raw["data"]
        elif isinstance(raw, list) and len(raw) == 2:
            labels, data = raw
        else:
            raise self._wrong("neither that nor [labels, data]")
        if not (isinstance(labels, list) and isinstance(data, list) and labels and data):
            raise self._wrong("labels or data that are no list, or an empty one")
        return labels, data

    def _entry(self, i: int, entry: Any, classes: int) -> tuple[str, Any, list[int], list[int]]:
        """One entry as (image, annotation or None, label, hard)."""
        if not isinstance(entry, list) or len(entry) not in (3, 4) or type(entry[0]) is not str:
            raise self._wrong(f"entry {i} that is no list of 3 or 4 elements, an image name first")
        image, *annotation, label, hard = entry
        for flags in (label, hard):
            fits = isinstance(flags, list) and len(flags) == classes
            if not fits or any(flag not in (0, 1) for flag in flags):
                raise self._wrong(f"entry {i} whose label or hard is no list of {classes} 0s or 1s")
        return image, annotation[0] if annotation else None, label, hard

    def _locate(self, image: str) -> str:
        """The path within the folder: as given where it exists, else the bare file name."""
        given = PurePosixPath(image)
        if not given.is_absolute() and ".." not in given.parts and (self.folder / given).is_file():
            return str(given)
        return given.name

    def _atoms(self, compound: Any) -> tuple[str, ...]:
        """The attributes and the object of `[[attribute, ...], object]`; the words of a string."""
        if isinstance(compound, str) and compound.strip():
            return tuple(compound.split())
        if isinstance(compound, list) and len(compound) == 2 and isinstance(compound[0], list):
            atoms = (*compound[0], compound[1])
            if all(isinstance(atom, str) for atom in atoms) and compound[1].strip():
                return atoms
        raise self._wrong(f"{str(compound)[:60]!r} where a label or an object should be")

    def _has_every_word(
        self, labels: Sequence[Any], annotations: Sequence[Any]
    ) -> Bool[Tensor, "N C"] | None:
        """Which image has all words of which query; None where an image is not annotated."""
        if any(not isinstance(objects, list) for objects in annotations):
            return None
        # "dining table" is one atom, unless some compound is a plain string without such borders.
        compounds = [*labels, *(thing for objects in annotations for thing in objects)]
        loose = any(isinstance(compound, str) for compound in compounds)

        def words(things: Sequence[Any]) -> Iterator[str]:
            for thing in things:
                for atom in self._atoms(thing):
                    yield from atom.split() if loose else (atom,)

        wanted = [set(words([label])) for label in labels]
        present = [set(words(objects)) for objects in annotations]
        return torch.tensor([[query <= image for query in wanted] for image in present])

    def _wrong(self, came: str) -> UserError:
        return UserError(f"expected {LAYOUT} in {self.path}, got {came}: download the file again")


def _subsets(path: Path, texts: tuple[str, ...]) -> dict[str, Bool[Tensor, "C"]]:
    wanted = 'a JSON object {"seen": [label, ...], "unseen": [label, ...]}'
    raw = read_json(path, wanted)
    fits = isinstance(raw, dict) and raw.keys() == {"seen", "unseen"}
    if not fits or any(not isinstance(part, list) for part in raw.values()):
        raise UserError(f"expected {wanted} in {path}, got another layout: correct the file")
    named = [str(label) for part in raw.values() for label in part]
    unknown = sorted(set(named) - set(texts))
    if unknown or len(set(named)) != len(named):
        reason = f"{unknown[0]!r}, which is no label" if unknown else "a label twice"
        raise UserError(f"expected labels of the benchmark in {path}, got {reason}: correct it")
    return {part: torch.tensor([text in labels for text in texts]) for part, labels in raw.items()}


def _mean(precision: ClassPrecision, members: Bool[Tensor, "C"] | None = None) -> Metric:
    counted = precision.counted if members is None else precision.counted & members
    return average(precision.values[counted], float(precision.chance[counted].mean()))


def _left_out(precision: ClassPrecision) -> dict[str, Metric]:
    counts = {
        "classes_without_positives": precision.no_positives,
        "classes_with_empty_hard_set": precision.empty_pool,
        "classes_without_positives_in_hard_set": precision.none_in_pool,
    }
    return {
        name: Metric(float(n), len(precision.values), higher_is_better=False, unit="count")
        for name, n in counts.items()
    }


def _query_all(
    values: Float[Tensor, "N C"], labels: Bool[Tensor, "N C"], every: Bool[Tensor, "N C"]
) -> dict[str, Metric]:
    """Average precision and mean ranks among the images that have all words of the query."""
    pool = every | labels
    precision = class_average_precision(values, labels, pool)
    rows = []  # mean rank of true images, of distractors, and what random scores give both
    for c in range(labels.shape[1]):
        positives = labels[pool[:, c], c]
        if positives.any() and not positives.all():
            ranks = mean_ranks(values[pool[:, c], c], positives)
            rows.append((*ranks, (len(positives) + 1) / 2))
    metrics = {"query_all_map": _mean(precision)}
    if rows:
        true, distractor, expected = torch.tensor(rows, dtype=torch.float64).unbind(1)
        chance = float(expected.mean())
        metrics["mean_rank_true"] = average(true, chance, higher_is_better=False, unit="rank")
        metrics["mean_rank_distractor"] = average(distractor, chance, unit="rank")
    return metrics


def _f1(values: Float[Tensor, "N C"], items: _Items, precision: ClassPrecision) -> Metric:
    counted = precision.counted
    f1 = [
        f1_at_positives(values[items.hard[:, c], c], items.labels[items.hard[:, c], c])
        for c in counted.nonzero().flatten().tolist()
    ]
    chance = float(precision.prevalence[counted].mean())
    return average(torch.tensor(f1, dtype=torch.float64), chance)


def _examples(
    values: Float[Tensor, "N C"], items: _Items, precision: ClassPrecision
) -> tuple[Example, ...]:
    """The first queries whose best image is true, and the first whose best image is not."""
    right: list[Example] = []
    wrong: list[Example] = []
    for c in precision.counted.nonzero().flatten().tolist():
        pool: Int[Tensor, "p"] = items.hard[:, c].nonzero().flatten()
        order = pool[values[pool, c].argsort(descending=True, stable=True)][:BEST].tolist()
        # A true image that a false one ties with is not retrieved.
        ties = pool[values[pool, c] == values[order[0], c]]
        correct = bool(items.labels[ties, c].all())
        kind = right if correct else wrong
        if len(kind) < SHOWN:
            kind.append(
                Example(
                    query=items.texts[c],
                    images=tuple(items.images[i] for i in order),
                    scores=tuple(float(values[i, c]) for i in order),
                    true=tuple(bool(items.labels[i, c]) for i in order),
                    correct=correct,
                )
            )
    return (*right, *wrong)
