"""A query of a ranking as a row of the file of items: its best candidates and its true ones.

In: scores of all candidates of one query. Out: a row with a few of them. Never: all of them.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.results.item_row import ItemRow
from vlmtune.types import ImageRef

TRUE = 5  # true candidates in a row


def query_row(
    images: Sequence[ImageRef],
    captions: Sequence[str],
    scores: Float[Tensor, "n"],
    true: Bool[Tensor, "n"],
    best: int = 1,
    **fields: Any,
) -> ItemRow:
    """The row of a caption over n images, or of an image over n captions.

    It has the `best` candidates, some true ones and a false one; `fields` are the others of a row.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> fields = {"id": "coco/0", "benchmark": "coco", "outcome": 0.0, "rank": 3}
        >>> scores, true = torch.tensor([0.5, 0.25, 0.75, 0.5]), torch.tensor([1, 1, 0, 0]) > 0
        >>> row = query_row([ImageRef(Path("a.png"))], "abcd", scores, true, **fields)
        >>> row.captions, row.true, row.scores
        (('c', 'a', 'b'), ((False, True, True),), ((0.75, 0.5, 0.25),))
    """
    shown = _shown(scores, true, best)
    truth = true[shown][None]
    values = scores[shown][None]
    if len(captions) == 1:  # a line for each image
        images = [images[position] for position in shown]
        truth = truth.T
        values = values.T
    else:
        captions = [captions[position] for position in shown]
    return ItemRow(
        images=tuple(images),
        captions=tuple(captions),
        true=tuple(map(tuple, truth.tolist())),
        scores=tuple(map(tuple, values.tolist())),
        **fields,
    )


def _shown(scores: Float[Tensor, "n"], true: Bool[Tensor, "n"], best: int) -> list[int]:
    """The first `best` candidates, the first `TRUE` true ones, and the first false one.

    Of equal scores a false candidate comes first, as it does where ties are lost.
    """
    scores = scores.contiguous()  # of a column of a large matrix each number is far from the last
    true = true.contiguous()
    # The best of all may lack a true one or a false one, and a reader wants to compare both. The
    # first false one is among the best as many as there are true ones, and one more.
    true_positions = true.nonzero()[:, 0]
    leading = min(len(true_positions) + best, len(scores))
    least = scores.topk(leading).values[-1]
    near = (scores >= least).nonzero()[:, 0]
    near_and_false = near[~true[near]]
    chosen = _first(scores, near, best)
    chosen += _first(scores, true_positions, TRUE)
    chosen += _first(scores, near_and_false, 1)

    def order(position: int) -> tuple[float, bool, int]:
        score = float(scores[position])
        return -score, bool(true[position]), position

    return sorted(set(chosen), key=order)


def _first(scores: Float[Tensor, "n"], positions: Int[Tensor, "k"], most: int) -> list[int]:
    """Those of some ascending positions with the best scores; of equal ones the first."""
    order = scores[positions].argsort(descending=True, stable=True)
    return positions[order[:most]].tolist()
