"""One item of a benchmark as a run scored it: a row of the file of items.

In: values from an evaluation. Out: the same values. Never: a computed number.
"""

from dataclasses import dataclass

from vlmtune.types import ImageRef


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One item of a benchmark, for the file of items.

    Attributes:
        id: The benchmark and the item's position among those that are evaluated, from 0.
        benchmark: Name of the benchmark.
        outcome: What the primary metric gives it.
        images: Its images; empty where an item has no short list of images and captions.
        captions: The captions it compares.
        true: For each image, whether each caption is true of it.
        scores: For each image, the score of each caption; None for a pair that is not compared.
        rank: Of a query, the rank of its best true image or caption among all false ones, from 1;
            images or captions are then those that score best and the true ones, best first.
    """

    id: str
    benchmark: str
    outcome: float
    images: tuple[ImageRef, ...] = ()
    captions: tuple[str, ...] = ()
    true: tuple[tuple[bool, ...], ...] = ()
    scores: tuple[tuple[float | None, ...], ...] = ()
    rank: int | None = None

    @property
    def right(self) -> bool | None:
        """Whether the item counts as right; None for an outcome that is neither 1 nor 0.

        Example:
            >>> [ItemRow("cola/0", "cola", outcome).right for outcome in (1.0, 0.0, 0.5)]
            [True, False, None]
        """
        return {1.0: True, 0.0: False}.get(self.outcome)
