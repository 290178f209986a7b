"""A query of a ranking as the file of items shows it: its best candidates and its true ones.

In: scores of all candidates of one query. Out: a few of them, with scores. Never: all of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.types import ImageRef

TRUE = 5  # true candidates in a row


class ShownCandidates(NamedTuple):
    """Some candidates of a query, best first."""

    positions: tuple[int, ...]
    true: tuple[bool, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Query:
    """One query of a ranking: a caption over images, or an image over captions."""

    part: str  # "" for the queries that the primary metric is a mean over, else their name
    outcome: float  # what the metric gives it
    rank: int  # of its best true candidate among the false ones, from 1
    images: tuple[ImageRef, ...]  # the caption's candidates, best first, or the image
    captions: tuple[str, ...]  # the image's candidates, best first, or the caption
    shown: ShownCandidates  # the candidates, as positions


def shown(scores: Float[Tensor, "n"], true: Bool[Tensor, "n"], best: int = 1) -> ShownCandidates:
    """The first `best` candidates, the first `TRUE` true ones, and the first false one.

    Of equal scores a false candidate comes first, as it does where ties are lost.

    Example:
        >>> scores = torch.tensor([0.5, 0.25, 0.75, 0.5])
        >>> shown(scores, torch.tensor([True, True, False, False]))
        ShownCandidates(positions=(2, 0, 1), true=(False, True, True), scores=(0.75, 0.5, 0.25))
    """
    # The best of all may lack a true one or a false one, and a reader wants to compare both.
    any_candidate = torch.ones_like(true)
    chosen = _first(scores, any_candidate, best)
    chosen += _first(scores, true, TRUE)
    chosen += _first(scores, ~true, 1)

    def order(position: int) -> tuple[float, bool, int]:
        return -float(scores[position]), bool(true[position]), position

    positions = sorted(set(chosen), key=order)
    is_true = true[positions].tolist()
    values = scores[positions].tolist()
    return ShownCandidates(tuple(positions), tuple(is_true), tuple(values))


def _first(scores: Float[Tensor, "n"], among: Bool[Tensor, "n"], most: int) -> list[int]:
    """Positions of the best scores among some candidates; of equal ones the first."""
    positions = among.nonzero()[:, 0]
    values = scores[positions]
    if len(values) > most:
        # Only candidates that reach the last of the best are sorted: much faster than all.
        least = values.topk(most).values[-1]
        is_enough = values >= least
        positions = positions[is_enough]
        values = values[is_enough]
    order = values.argsort(descending=True, stable=True)
    return positions[order[:most]].tolist()
