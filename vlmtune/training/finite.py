"""Finds the cause of NaN or infinite scores, gradients and weights.

In: scores, losses, gradients or weights. Out: whether they are finite on all ranks, and the first
culprit of this rank. Never: the end of the run; `module` stops it.

Reading a number from a GPU waits for all that was launched before. So the checks of a step stay on
the device, and `module` reads all of them together, once, before the optimizer steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.score_shards import TrainingShard
from vlmtune.training.signals import Signals
from vlmtune.types import Batch, Scores, send


@dataclass(frozen=True)
class BatchCheck:
    """What tells whether scores and losses of a batch are finite, and what names the culprit."""

    # Sums over ranks: how many scores are not finite, the signals, and the k losses.
    sums: Float[Tensor, "s"]
    rows: Scores  # of the rank, and which were computed, as in `ScoreShard`
    columns: Scores  # likewise
    texts: Int[Tensor, "m"]  # which texts of the batch are its columns
    batch: Batch  # of the rank, without its pixels


def batch_check(
    shard: TrainingShard,
    parts: Float[Tensor, "k"],
    batch: Batch,
    group: ProcessGroup,
    signals: Signals | None = None,
) -> BatchCheck:
    """Adds what a batch is checked by over all ranks; `signals` of each rank travel along.

    `parts` are the rank's parts of the losses.
    """
    # Every score is in the rows of some rank, so rows alone are counted.
    is_wrong = ~shard.rows.values.isfinite()
    wrong = is_wrong.sum().reshape(1).to(parts.dtype)
    counts = [] if signals is None else signals.counts()
    signal_counts = send(torch.tensor(counts, dtype=parts.dtype), parts.device)
    # One sum over the ranks carries all: each sum costs a wait for all ranks.
    of_rank = torch.cat([wrong, signal_counts, parts.detach()])
    sums = group.sum(of_rank)
    # Without gradients and pixels, a batch that waits for its step costs little memory.
    rows = Scores(shard.rows.values.detach(), shard.rows.computed)
    columns = Scores(shard.columns.values.detach(), shard.columns.computed)
    batch = replace(batch, pixels=None)
    return BatchCheck(sums, rows, columns, shard.layout.texts, batch)


def first_wrong_record(check: BatchCheck, group: ProcessGroup) -> str:
    """Returns the key of the first record with an image or a text that has no finite score.

    If there is none, it is the first record with any score that is not finite.
    """
    # A text or an image without any finite score is the cause, others only meet it.
    batch = check.batch
    images = _none_finite(check.rows.values, check.rows.computed)
    texts = _none_finite(check.columns.values.T, check.columns.computed.T)
    # A text counts for the records of this rank that it belongs to.
    same_group = batch.targets.same_group[:, check.texts]
    certain = images | (same_group & texts).any(dim=1)
    is_wrong = ~check.rows.values.isfinite()
    possible = is_wrong.any(dim=1)

    first_keys = (_first_key(certain, batch), _first_key(possible, batch))
    by_rank = group.objects(first_keys)
    certain_keys, possible_keys = zip(*by_rank, strict=True)
    # Certain causes of any rank come before possible ones.
    for key in (*certain_keys, *possible_keys):
        if key:
            return key
    return batch.keys[0]


def _none_finite(
    values: Float[Tensor, "rows columns"], computed: Bool[Tensor, "rows columns"]
) -> Bool[Tensor, "rows"]:
    """True for rows with scores, none of which is finite."""
    finite = values.isfinite()
    wrong = (computed & ~finite).any(dim=1)
    right = (computed & finite).any(dim=1)
    return wrong & ~right


def _first_key(wrong: Bool[Tensor, "n"], batch: Batch) -> str | None:
    """The key of the record of the first image that is wrong."""
    groups = batch.image_group[wrong].tolist()
    return batch.keys[groups[0]] if groups else None


def gradient_norm(parameters: Sequence[nn.Parameter], infinity: bool = False) -> Tensor:
    """Returns the norm of this rank's gradients, a tensor without dimensions on their device.

    It is NaN or infinite if a gradient is. The L2 norm may be infinite for finite gradients, whose
    squares are not; the largest absolute value (`infinity`) never is, but takes eight times as long
    on a CPU.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = parameter.grad
            # The strategy FSDP2 holds a part of the tensor on each rank.
            if isinstance(gradient, DTensor):
                gradient = gradient.to_local()
            if gradient.numel():
                gradients.append(gradient)
    if not gradients:  # on this rank; the others still wait for its number
        return torch.zeros((), device=parameters[0].device)
    order = torch.inf if infinity else 2.0
    return get_total_norm(gradients, norm_type=order)


def finite_gradients(parameters: Sequence[nn.Parameter], group: ProcessGroup) -> bool:
    """Returns whether all gradients of all ranks are finite, and waits for the device.

    Gradients of DDP are equal on all ranks, others need not be.
    """
    norm = gradient_norm(parameters, infinity=True)
    wrong = (~norm.isfinite()).sum()
    return not int(group.sum(wrong))


def first_wrong_gradient(named: Iterable[tuple[str, nn.Parameter]]) -> str | None:
    """Returns the name of the first parameter whose gradient is not finite, or None."""
    gradients = {}
    for name, parameter in named:
        if parameter.grad is not None:
            gradients[name] = parameter.grad
    return first_wrong_weight(gradients)


def first_wrong_weight(state: Mapping[str, Tensor]) -> str | None:
    """Returns the name of the first tensor that is not finite, or None.

    Example:
        >>> first_wrong_weight({"a": torch.ones(2), "b": torch.tensor([torch.nan])})
        'b'
    """
    for name, value in state.items():
        if not value.isfinite().all():
            return name
    return None
