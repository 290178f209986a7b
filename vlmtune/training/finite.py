"""Finds out what made a step's scores or gradients NaN or infinite."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.types import Batch, ScoreShard


def all_finite(share: ScoreShard, ranks: ProcessGroup) -> bool:
    """Whether every score of every rank is a finite number; waits for all ranks."""
    # Every score is in the rows of some rank.
    return not int(ranks.sum((~torch.isfinite(share.rows.values)).sum()))


def first_wrong_record(
    share: ScoreShard, batch: Batch, place: ShardLayout, ranks: ProcessGroup
) -> str:
    """Key of the first record with an image or a text all of whose scores are not finite.

    Where there is none, the first record with any such score. Every rank must ask.
    """
    suspects = ranks.objects(_suspect(share, batch, place))
    return next(
        (key for certain in (True, False) for sure, key in suspects if key and sure == certain),
        batch.keys[0],
    )


def _suspect(share: ScoreShard, batch: Batch, place: ShardLayout) -> tuple[bool, str | None]:
    """A record of this rank, and whether it is certain that it is the one."""
    wrong = ~torch.isfinite(share.rows.values)
    if (image := _first(_all_wrong(wrong, share.rows.computed))) is not None:
        return True, _key(batch, image)
    by_text = ~torch.isfinite(share.columns.values.T)
    if (text := _first(_all_wrong(by_text, share.columns.computed.T))) is not None:
        owners = batch.targets.same_group[:, place.texts[text]]
        return True, _key(batch, _first(owners) or 0)
    image = _first(wrong.any(dim=1))
    return False, None if image is None else _key(batch, image)


def _all_wrong(
    wrong: Bool[Tensor, "rows columns"], computed: Bool[Tensor, "rows columns"]
) -> Bool[Tensor, "rows"]:
    return wrong.any(dim=1) & (wrong | ~computed).all(dim=1)


def _first(flags: Bool[Tensor, "n"]) -> int | None:
    at = flags.nonzero().flatten().tolist()
    return at[0] if at else None


def _key(batch: Batch, image: int) -> str:
    return batch.keys[int(batch.image_group[image])]


def finite_gradients(parameters: Sequence[nn.Parameter], ranks: ProcessGroup) -> bool:
    """Whether every gradient of every rank is a finite number; waits for all ranks.

    Gradients of DDP are equal on all ranks, others need not be.
    """
    gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
    if not gradients:  # on this rank: the others ask too
        return not int(ranks.sum(torch.zeros((), dtype=torch.int64, device=parameters[0].device)))
    # The largest absolute value: a sum, or a sum of squares, of finite numbers may be infinite.
    largest = get_total_norm(gradients, norm_type=torch.inf)
    return not int(ranks.sum((~torch.isfinite(largest)).sum()))


def first_wrong_gradient(named: Iterable[tuple[str, nn.Parameter]]) -> str | None:
    """Name of the first parameter whose gradient is not finite, or None."""
    return first_wrong_weight({name: p.grad for name, p in named if p.grad is not None})


def first_wrong_weight(state: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor that is not finite, or None.

    Example:
        >>> first_wrong_weight({"a": torch.ones(2), "b": torch.tensor([torch.nan])})
        'b'
    """
    return next((name for name, value in state.items() if not value.isfinite().all()), None)
