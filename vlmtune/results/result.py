"""What a benchmark reports: numbers, examples for the gallery, and outcomes of items.

In: values from a benchmark. Out: the same values, for the report. Never: a computed number.
"""

from dataclasses import dataclass, field
from typing import Literal

from vlmtune.results.metric_value import MetricValue
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class Example:
    """One retrieval for the gallery.

    Attributes:
        query: The caption.
        images: The retrieved images, best first.
        scores: Score of each image.
        true: Whether the caption is true of each image.
        correct: Whether the retrieval counts as correct.
    """

    query: str
    images: tuple[ImageRef, ...]
    scores: tuple[float, ...]
    true: tuple[bool, ...]
    correct: bool


@dataclass(frozen=True)
class WordMaps:
    """Which part of an image each word of a caption reads, for the gallery.

    Attributes:
        caption: The caption.
        image: The image.
        words: Its words, in order.
        maps: Of each word, the weights of the patches in percent with blanks between them, row by
            row from the top.
        columns: Patches in a row.
        box: Left, top, width and height of the patches together, as fractions of the image: a
            model may see its middle only.
        correct: Whether the item of this caption counts as right.
    """

    caption: str
    image: ImageRef
    words: tuple[str, ...]
    maps: tuple[str, ...]
    columns: int
    box: tuple[float, float, float, float]
    correct: bool


@dataclass(frozen=True)
class Occurrence:
    """What occurs twice: an item of a benchmark, or something within it.

    Attributes:
        items: Positions of the items among those that are evaluated, from 0.
        images: Their images: folder and file name, and the box where one is cropped.
        texts: The captions in question.
    """

    items: tuple[int, ...]
    images: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Repeat:
    """One kind of repetition in a benchmark, with the first ones to look at.

    Attributes:
        kind: "item" for items of the same images and captions as an earlier one, "caption" for
            those whose right caption is also a wrong one, "image" for those with an image twice.
        total: How many items are such.
        n: How many items there are.
        listed: The first ones.
    """

    kind: Literal["item", "caption", "image"]
    total: int
    n: int
    listed: tuple[Occurrence, ...]


@dataclass(frozen=True)
class Result:
    """What a benchmark says of a model.

    Attributes:
        benchmark: Name of the benchmark instance, unique within a run.
        version: Version of the metric's definition; numbers of different versions do not compare.
        primary: The key of `metrics` that stands for the whole.
        metrics: All numbers, by name.
        examples: Retrievals to look at.
        citation: The source of the metric.
        convention: "strict" (a tie is never a win, every row counts) or "reference" (as the
            published script does).
        outcomes: Of each item in the order of the file, what the primary metric gives it, in
            [0, 1] (a cosine in [-1, 1]); empty where it is not a mean over items. Two runs are
            compared item by item.
        runs: Outcomes of each run of a measurement that is repeated; `outcomes` is their mean.
        clusters: Of each item the number of its image: intervals count items that share one as
            dependent.
        caption_sets: Of each item the number of its captions where items share these, too, and
            intervals count it; else empty.
        groups: Where the primary metric is a mean over groups of the mean within each: of each
            item the number of its group, -1 where it counts in none. Empty for a plain mean.
        group_weights: Weight of each group by its number, up to a factor; empty if all groups that
            have items weigh the same.
        degree: 2 where an outcome is itself a mean over pairs of its item with others, else 1. To
            first order the metric varies so many times as much as a mean of the outcomes.
        series: Numbers whose distribution is drawn, such as the equivariance score of each item.
        kind: "compositional", "retained" for an ability the model had before training, where a
            fall is forgetting, or "sensitivity", where neither more nor less of it is better.
        items_digest: Digest of the scored images and captions; "" if unknown. The suite adds it.
            Only results with equal digests are compared item by item.
        repeats: Items, captions and images that occur twice. The suite adds them.
        title: The name for people; the suite adds it, as it does `asks` and `about`.
        asks: What the benchmark asks, such as "relations"; reports group benchmarks by it.
        about: What it measures, in one line.
        readings: What words read in a right and a wrong item, if the adapter shows it.
    """

    benchmark: str
    version: str
    primary: str
    metrics: dict[str, MetricValue]
    examples: tuple[Example, ...] = field(default=())
    citation: str = ""
    convention: Literal["strict", "reference"] = "strict"
    outcomes: tuple[float, ...] = ()
    clusters: tuple[int, ...] = ()
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)
    kind: Literal["compositional", "retained", "sensitivity"] = "compositional"
    items_digest: str = ""
    groups: tuple[int, ...] = ()
    group_weights: tuple[float, ...] = ()
    degree: int = 1
    repeats: tuple[Repeat, ...] = ()
    readings: tuple[WordMaps, ...] = ()
    runs: tuple[tuple[float, ...], ...] = ()
    caption_sets: tuple[int, ...] = ()
    title: str = ""
    asks: str = ""
    about: str = ""

    @property
    def definition(self) -> tuple[str, str, str]:
        """Benchmark, version and convention: numbers compare only under the same three."""
        return self.benchmark, self.version, self.convention

    @property
    def cluster_ways(self) -> tuple[tuple[int, ...], ...]:
        """The clusters of the items by image, and by captions where these count, too."""
        return tuple(way for way in (self.clusters, self.caption_sets) if way)
