"""Gradient caching: a batch of any size in the memory of a few rows.

In: a function of some rows. Out: all rows, with the gradient of the full batch.
Never: activations of more than one chunk.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vlmtune.types import Rows, concatenate

Part = TypeVar("Part", bound=Tensor | Rows)


def in_chunks(
    function: Callable[[slice], Part], rows: int, chunk: int | None, device: torch.device
) -> Part:
    """Applies `function` to a few rows at a time and stacks what it returns.

    A contrastive loss needs all embeddings of a batch at once, but not the activations behind them.
    Forward, each chunk saves its embeddings only. Backward, when their gradient is known, its
    activations are computed again, with the same random numbers. That is GradCache, by
    `torch.utils.checkpoint`. The gradient is that of the full batch, unless rows see each other, as
    in batch norm. A `chunk` of None takes all rows at once and computes nothing again.

    Source: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
    setup", section 3.

    Example:
        >>> weight = torch.ones((), requires_grad=True)
        >>> x = torch.arange(4.0)
        >>> in_chunks(lambda part: x[part] * weight, 4, 2, x.device).sum().backward()
        >>> weight.grad
        tensor(6.)
    """
    if chunk is None or rows <= chunk:
        return function(slice(0, rows))
    # `checkpoint` keeps the random state of the devices whose tensors it is given, and no other.
    anchor = torch.empty(0, device=device)

    def run(part: slice, anchor: Tensor) -> Part:
        del anchor
        return function(part)

    parts = []
    for start in range(0, rows, chunk):
        end = min(start + chunk, rows)
        part = slice(start, end)
        if torch.is_grad_enabled():
            parts.append(checkpoint(run, part, anchor, use_reentrant=False))
        else:
            parts.append(function(part))
    if isinstance(parts[0], Tensor):
        return cast(Part, torch.cat(parts))
    return cast(Part, concatenate(parts))
