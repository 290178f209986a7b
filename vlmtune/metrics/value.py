"""A number with its sample size, chance level and interval."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricValue:
    """One number of a benchmark, with what is needed to trust it.

    Attributes:
        value: The number, a fraction (0.25 is 25 %) unless `unit` says otherwise.
        n: How many items it is a mean over.
        chance: What random scores reach, or None where that is not defined.
        low: Lower end of the 95 % interval, or None.
        high: Upper end of the 95 % interval, or None.
        higher_is_better: The direction.
        unit: "fraction", "cosine" (-1 to 1), "rank" for ranks, or "count".
    """

    value: float
    n: int
    chance: float | None = None
    low: float | None = None
    high: float | None = None
    higher_is_better: bool = True
    unit: str = "fraction"
