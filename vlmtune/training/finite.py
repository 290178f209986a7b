"""Finds the cause of NaN or infinite scores, gradients and weights.

In: a score shard, gradients or weights. Out: whether they are finite on all ranks, and the first
culprit of this rank. Never: the end of the run; `module` stops it.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.training.signals import Signals
from vlmtune.types import Batch, ScoreShard


def all_finite(shard: ScoreShard, group: ProcessGroup, signals: Signals | None = None) -> bool:
    """Returns whether all scores of all ranks are finite; ranks agree on `signals` on the way."""
    # Every score is in the rows of some rank.
    is_wrong = ~shard.rows.values.isfinite()
    wrong = is_wrong.sum().reshape(1)
    if signals is None:
        return not int(group.sum(wrong))
    # One sum over the ranks carries both counts: each sum costs a wait for all ranks.
    signal_counts = wrong.new_tensor(signals.counts())
    both = torch.cat([wrong, signal_counts])
    total_wrong, *total_signals = group.sum(both).tolist()
    signals.agree(total_signals)
    return not total_wrong


def first_wrong_record(
    shard: ScoreShard, batch: Batch, layout: ShardLayout, group: ProcessGroup
) -> str:
    """Returns the key of the first record with an image or a text that has no finite score.

    If there is none, it is the first record with any score that is not finite.
    """
    # A text or an image without any finite score is the cause, others only meet it.
    images = _none_finite(shard.rows.values, shard.rows.computed)
    texts = _none_finite(shard.columns.values.T, shard.columns.computed.T)
    owners = batch.targets.same_group[:, layout.texts]
    certain = images | (owners & texts).any(dim=1)
    is_wrong = ~shard.rows.values.isfinite()
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


def finite_gradients(parameters: Sequence[nn.Parameter], group: ProcessGroup) -> bool:
    """Returns whether all gradients of all ranks are finite.

    Gradients of DDP are equal on all ranks, others need not be.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None:
            # Only a part of a tensor that a strategy shards is on this rank.
            gradient = _local_part(parameter.grad)
            if gradient.numel():
                gradients.append(gradient)
    if not gradients:  # on this rank; the others still call `sum`
        none = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
        return not int(group.sum(none))
    # The sum of squares is eight times as fast as the largest absolute value on a CPU, but may be
    # infinite for finite numbers.
    norm = get_total_norm(gradients)
    if not norm.isfinite():
        norm = get_total_norm(gradients, norm_type=torch.inf)
    wrong = (~norm.isfinite()).sum()
    return not int(group.sum(wrong))


def _local_part(gradient: Tensor) -> Tensor:
    """This rank's part of a gradient that the strategy FSDP2 holds in parts."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


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
