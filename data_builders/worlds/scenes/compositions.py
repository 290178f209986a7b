"""Compositions of colour and shape that training lacks.

In: rectangles of colours and shapes. Out: unseen compositions, and swaps of their colours.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from data_builders.worlds.scenes.sampling import Composition, cogent
from data_builders.worlds.scenes.scene import COLORS, SHAPES
from vlmtune.errors import UserError

Rectangle = tuple[Sequence[str], Sequence[str]]
Condition = Literal["A", "B"]  # of CLEVR-CoGenT
Unseen = Sequence[Rectangle] | Condition

# Whole rectangles, so that exchanging the colours of two unseen compositions gives two unseen ones.
# Eight of 40: with 16 of 40 held out, an adapter memorises the other 24 compositions.
RECTANGLES: tuple[Rectangle, ...] = (
    (("red", "blue"), ("cube", "sphere")),
    (("green", "purple"), ("cylinder", "cone")),
)


@dataclass(frozen=True)
class Swap:
    """Two colours and two shapes; their four compositions are all seen or all unseen."""

    colors: tuple[str, str]
    shapes: tuple[str, str]

    def compositions(self) -> frozenset[Composition]:
        """Returns the four (color, shape) pairs."""
        return frozenset(itertools.product(self.colors, self.shapes))


def unseen_compositions(
    rectangles: Unseen, colors: Sequence[str], shapes: Sequence[str]
) -> frozenset[Composition]:
    """Returns the held-out (color, shape) pairs of a world of these colours and shapes.

    Drops a rectangle that is only partly in the world: the rest is not closed under exchange.
    "A" or "B" stands for what that condition of CLEVR-CoGenT forbids.

    Example:
        >>> sorted(unseen_compositions(RECTANGLES, ["red", "blue", "green"], ["cube", "sphere"]))
        [('blue', 'cube'), ('blue', 'sphere'), ('red', 'cube'), ('red', 'sphere')]
        >>> unseen_compositions("A", ["red", "blue"], ["cube", "cone"])
        frozenset({('red', 'cube')})
    """
    if isinstance(rectangles, str):
        return cogent(rectangles) & frozenset(itertools.product(colors, shapes))
    unseen: set[Composition] = set()
    for columns, rows in rectangles:
        known = set(columns) <= set(COLORS) and set(rows) <= set(SHAPES)
        if not known or len(set(columns)) < 2 or len(set(rows)) < 2:
            raise UserError(
                f"expected unseen rectangles of two or more of {list(COLORS)} by two or more of "
                f"{list(SHAPES)}, got {list(columns)} by {list(rows)}: name two of each"
            )
        if set(columns) <= set(colors) and set(rows) <= set(shapes):
            unseen.update(itertools.product(columns, rows))
    return frozenset(unseen)


def swaps(allowed: frozenset[Composition], name: str = "seen") -> tuple[Swap, ...]:
    """Returns, in a fixed order, every swap whose four compositions are all allowed.

    Raises:
        UserError: There is none; `name` says which compositions are allowed.

    Example:
        >>> square = frozenset(itertools.product(("red", "blue"), ("cube", "cone")))
        >>> swaps(square)
        (Swap(colors=('blue', 'red'), shapes=('cone', 'cube')),)
    """
    # Sorted, as a set has another order in each process.
    colors = sorted({color for color, _ in allowed})
    shapes = sorted({shape for _, shape in allowed})
    two_colors = itertools.combinations(colors, 2)
    two_shapes = itertools.combinations(shapes, 2)
    candidates = itertools.starmap(Swap, itertools.product(two_colors, two_shapes))
    chosen = tuple(swap for swap in candidates if swap.compositions() <= allowed)
    if not chosen:
        raise UserError(
            f"expected two colours and two shapes whose four compositions are all {name}, got "
            "none: change `unseen`, or add colors or shapes"
        )
    return chosen
