"""Which (color, shape) compositions are held out, and the swaps that never mix the two kinds."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from data_builders.scenes.grammar import COLORS, SHAPES
from vlmtune.errors import UserError

Pair = tuple[str, str]
Rectangle = tuple[Sequence[str], Sequence[str]]

# Whole rectangles, so that exchanging the colours of two unseen compositions gives two unseen ones.
# Eight of 40: with 16 of 40 held out an adapter learns the 24 compositions left by heart instead.
RECTANGLES: tuple[Rectangle, ...] = (
    (("red", "blue"), ("cube", "sphere")),
    (("green", "purple"), ("cylinder", "cone")),
)


@dataclass(frozen=True)
class Swap:
    """Two colours and two shapes; its four compositions are all seen or all unseen."""

    colors: Pair
    shapes: Pair

    def compositions(self) -> frozenset[Pair]:
        """The four (color, shape) pairs."""
        return frozenset(itertools.product(self.colors, self.shapes))


def unseen_pairs(
    rectangles: Iterable[Rectangle], colors: Sequence[str], shapes: Sequence[str]
) -> frozenset[Pair]:
    """Returns the held-out (color, shape) pairs of a world of these colours and shapes.

    A rectangle that is not wholly in the world is left out: what remained of it would no longer
    be closed under exchange.

    Raises:
        UserError: A rectangle names an unknown colour or shape, or has fewer than two of either.

    Example:
        >>> sorted(unseen_pairs(RECTANGLES, ["red", "blue", "green"], ["cube", "sphere"]))
        [('blue', 'cube'), ('blue', 'sphere'), ('red', 'cube'), ('red', 'sphere')]
    """
    unseen: set[Pair] = set()
    for some_colors, some_shapes in rectangles:
        known = set(some_colors) <= set(COLORS) and set(some_shapes) <= set(SHAPES)
        if not known or len(set(some_colors)) < 2 or len(set(some_shapes)) < 2:
            raise UserError(
                f"expected unseen rectangles of two or more of {list(COLORS)} by two or more of "
                f"{list(SHAPES)}, got {list(some_colors)} by {list(some_shapes)}: correct it"
            )
        if set(some_colors) <= set(colors) and set(some_shapes) <= set(shapes):
            unseen.update(itertools.product(some_colors, some_shapes))
    return frozenset(unseen)


def swaps(allowed: frozenset[Pair]) -> list[Swap]:
    """Returns, in a fixed order, every swap all of whose four compositions are allowed.

    Example:
        >>> square = frozenset(itertools.product(("red", "blue"), ("cube", "cone")))
        >>> swaps(square)
        [Swap(colors=('blue', 'red'), shapes=('cone', 'cube'))]
    """
    colors, shapes = (sorted({pair[k] for pair in allowed}) for k in (0, 1))
    every = (
        Swap(c, s)
        for c in itertools.combinations(colors, 2)
        for s in itertools.combinations(shapes, 2)
    )
    return [swap for swap in every if swap.compositions() <= allowed]
