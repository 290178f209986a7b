"""A number with its sample size, chance level and interval: what every benchmark reports.

In: numbers of a benchmark. Out: the same numbers, with what a reader needs to judge them.
"""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["fraction", "cosine", "rank", "count"]

TRUNCATED = "truncated_captions"
"""The metric that counts captions longer than the model reads, where there are any."""


@dataclass(frozen=True)
class MetricValue:
    """One number of a benchmark, with what a reader needs to judge it.

    Attributes:
        value: The number, a fraction (0.25 is 25 %) unless `unit` says otherwise.
        n: How many items it is a mean over.
        chance: What random scores reach, or None if that is undefined.
        low: Lower end of the 95 % interval, or None.
        high: Upper end of the 95 % interval, or None.
        higher_is_better: The direction.
        unit: "fraction", "cosine" (-1 to 1), "rank" or "count".
        clusters: How many of the items are independent: those that share an image, or captions,
            are one cluster. None if unknown.
    """

    value: float
    n: int
    chance: float | None = None
    low: float | None = None
    high: float | None = None
    higher_is_better: bool = True
    unit: Unit = "fraction"
    clusters: int | None = None


def count(value: int, n: int) -> MetricValue:
    """A number of items that is reported as it is, such as of those left out."""
    return MetricValue(float(value), n, higher_is_better=False, unit="count")
