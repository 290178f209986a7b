"""Cola, single-object queries: rank images for "square white plate" among hard distractors.

Files for GQA (320 queries, 1,952 images), CLEVR (96; 22,500) and PACO (400; 7,921); their layout
is described in `vlmtune.benchmarks.cola_files`. Source: Ray et al. 2023, sections 3, 5.1 and 10.
"""

import json
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention, check_images
from vlmtune.benchmarks.cola_files import Queries, read_queries, read_subsets, spelled
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.average_precision import ClassPrecision, class_average_precision
from vlmtune.metrics.intervals import bootstrap_mean
from vlmtune.metrics.ranking import f1_at_positives, mean_ranks
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

SHOWN, BEST = 4, 5  # queries of each kind in the gallery, and images for each


class ColaSingle(Benchmark):
    """Mean average precision of queries over images that hold at least one of their words.

    - `map`: mean over classes of the AP within the hard set (`hard` = 1: an attribute of the query
      on any object, or its object). Classes without a positive anywhere or with an empty hard set
      are left out, and so is, by the strict convention, a class with positives none of which is in
      its hard set; the counts are metrics (`classes_...`).
    - `map/attributes=2`: over the queries that state two attributes (figure 5), and so on.
    - `map_seen`, `map_unseen`: over a part of the classes, with `seen`.
    - `standard_map`: AP over all images.
    - `query_all_map`: AP over images that have all words of the query, on any objects (true ones
      always belong); `mean_rank_true` and `mean_rank_distractor`: mean ranks within that pool, ties
      ranked last, averaged over classes that have both. Only where the objects are annotated.
    - `f1`: within the hard set, the first P images predicted (see `f1_at_positives`).

    Chance is the mean over classes of what random scores reach; intervals resample the classes.

    Conventions differ in two points. Tied scores share one threshold in both, and scores are ranked
    as they are: torchmetrics from 0.11 on squashes logits by a sigmoid, under which those of CLIP
    collapse into ties, but the published script runs only with earlier versions.

    - "strict": the class described above has no AP. PACO's names are read as words ("light_blue
      car_(automobile)": "light blue car"), as in `vlmtune.benchmarks.cola_files.spelled`.
    - "reference": it counts as 0, as with torchmetrics 1.x; with the versions the script runs with,
      the whole mean would be NaN. Queries are scored as the file writes them; how Cola's authors
      turned PACO's names into words is not published.

    Args:
        path: The benchmark file.
        images: The folder with the image files.
        name: Name in reports.
        seen: JSON file `{"seen": [label, ...], "unseen": [label, ...]}`, labels as in the benchmark
            file; those not named count only in the whole.
        standard: Also score images outside the hard sets, for `standard_map`. Without it a joint
            model, which pays for each pair, has a fraction of the pairs to score.
        convention: See above.
        limit: Rank at most so many images. AP grows as pools shrink, and so does its chance, so
            such numbers do not compare with those of all images.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, or the convention is unknown.
    """

    version: ClassVar[str] = "1"
    primary: str = "map"
    citation: ClassVar[str] = "Ray et al. 2023, Cola, sections 3, 5.1 and 10 (single-object mAP)"
    source: ClassVar[str] = "github.com/arijitray1993/COLA (data/)"
    partial_credit: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "cola_single",
        seen: str | None = None,
        standard: bool = True,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        if convention not in ("strict", "reference"):
            raise UserError(
                f"expected the convention 'strict' or 'reference', got {convention!r}: name one"
            )
        check_limit(limit)
        self.path, self.folder, self.name = Path(path), Path(images), name
        self.seen = None if seen is None else Path(seen)
        self.standard = standard
        self.convention: Convention = convention
        self.limit, self.seed = limit, seed
        self._items: Queries | None = None
        self._subsets: dict[str, Bool[Tensor, "C"]] = {}

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
        """Reads the files and finds the images; calling it again does nothing.

        Raises:
            UserError: A file is not what it should be, an image is missing, or no query has a true
                image in its hard set.
        """
        if self._items is not None:
            return
        items = read_queries(self.path, self.folder)
        named = {f"_{part}": own for part, own in self._read_subsets(items.texts).items()}
        for count in sorted({int(n) for n in items.attributes if n >= 0}):
            named[f"/attributes={count}"] = items.attributes == count
        if not self.standard:  # an image that no metric ranks need not be encoded
            items = items.of(items.ranked.any(dim=1).nonzero().flatten().tolist())
        items = items.of(sample([""] * len(items.images), self.limit, self.seed))
        check_images(items.images, self)
        if not (items.labels & items.hard).any():
            raise UserError(
                f"expected queries with a true image in their hard set in {self.path}, got none "
                f"among {len(items.images)} images: raise `limit`, or download the file again"
            )
        self._items, self._subsets = items, named

    def images(self) -> tuple[ImageRef, ...]:
        """The images, in the order of the file."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The queries, in the order of the file."""
        texts = self._loaded().texts
        return spelled(texts) if self.convention == "strict" else texts

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
        values = scores.detach().cpu().double()
        if not self.standard:
            # No metric reads the others; it would raise if one did.
            chosen = values
            values = torch.full(items.labels.shape, torch.nan, dtype=torch.float64)
            values[items.ranked] = chosen
        precision = class_average_precision(values, items.labels, items.hard, self.convention)
        metrics = {"map": _mean(precision)}
        for part, members in self._subsets.items():
            if (members & precision.counted).any():
                metrics[f"map{part}"] = _mean(precision, members)
        if self.standard:
            every = torch.ones_like(items.hard)
            metrics["standard_map"] = _mean(class_average_precision(values, items.labels, every))
        if items.every is not None:
            metrics |= _query_all(values, items.labels, items.every)
        metrics["f1"] = _f1(values, items)
        metrics |= _left_out(precision)
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=self._examples(values),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(precision.values[precision.counted].tolist()),
        )

    def _examples(self, values: Float[Tensor, "N C"]) -> tuple[Example, ...]:
        """The first queries whose best image is true, and the first whose best image is not."""
        items, texts = self._loaded(), self.texts()
        shown: dict[bool, list[Example]] = {True: [], False: []}
        for c in (items.labels & items.hard).any(dim=0).nonzero().flatten().tolist():
            pool: Int[Tensor, "p"] = items.hard[:, c].nonzero().flatten()
            order = pool[values[pool, c].argsort(descending=True, stable=True)][:BEST].tolist()
            # A true image that a false one ties with is not retrieved.
            ties = pool[values[pool, c] == values[order[0], c]]
            correct = bool(items.labels[ties, c].all())
            if len(shown[correct]) < SHOWN:
                shown[correct].append(
                    Example(
                        query=texts[c],
                        images=tuple(items.images[i] for i in order),
                        scores=tuple(float(values[i, c]) for i in order),
                        true=tuple(bool(items.labels[i, c]) for i in order),
                        correct=correct,
                    )
                )
        return (*shown[True], *shown[False])

    def _read_subsets(self, texts: tuple[str, ...]) -> dict[str, Bool[Tensor, "C"]]:
        return {} if self.seen is None else read_subsets(self.seen, texts)

    def _loaded(self) -> Queries:
        self.load()
        assert self._items is not None
        return self._items


def _mean(precision: ClassPrecision, members: Bool[Tensor, "C"] | None = None) -> MetricValue:
    counted = precision.counted if members is None else precision.counted & members
    return bootstrap_mean(precision.values[counted], float(precision.chance[counted].mean()))


def _left_out(precision: ClassPrecision) -> dict[str, MetricValue]:
    counts = {
        "classes_without_positives": precision.no_positives,
        "classes_with_empty_hard_set": precision.empty_pool,
        "classes_without_positives_in_hard_set": precision.none_in_pool,
    }
    return {
        name: MetricValue(float(n), len(precision.values), higher_is_better=False, unit="count")
        for name, n in counts.items()
    }


def _query_all(
    values: Float[Tensor, "N C"], labels: Bool[Tensor, "N C"], every: Bool[Tensor, "N C"]
) -> dict[str, MetricValue]:
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
        metrics["mean_rank_true"] = bootstrap_mean(
            true, chance, higher_is_better=False, unit="rank"
        )
        metrics["mean_rank_distractor"] = bootstrap_mean(distractor, chance, unit="rank")
    return metrics


def _f1(values: Float[Tensor, "N C"], items: Queries) -> MetricValue:
    found, chance = [], []
    for c in (items.labels & items.hard).any(dim=0).nonzero().flatten().tolist():
        positives = items.labels[items.hard[:, c], c]
        found.append(f1_at_positives(values[items.hard[:, c], c], positives))
        chance.append(float(positives.double().mean()))
    return bootstrap_mean(torch.tensor(found, dtype=torch.float64), sum(chance) / len(chance))
