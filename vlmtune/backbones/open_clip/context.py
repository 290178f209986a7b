"""Gives a CLIP text tower more positions, for captions longer than it was trained on.

In: an open_clip model whose text attends to the left only. Out: the same model with more positions.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.errors import UserError

KEPT = 20  # positions that most captions reach in pre-training


def stretched(positions: Float[Tensor, "n w"], length: int) -> Float[Tensor, "m w"]:
    """Stretches a table of positions to `length` rows and keeps the first 20 as they are.

    Row p >= 20 is the old table at x = 20 + (p - 20) (n - 20) / (length - 20), linearly
    interpolated between rows, and extrapolated from the last two beyond row n - 1. For n = 77 and
    length = 248 this is the knowledge-preserved stretching of Long-CLIP (Zhang et al. 2024,
    arXiv 2403.15378), with its ratio of 4; other lengths have another ratio.

    Example:
        >>> table = torch.arange(77.0)[:, None]
        >>> stretched(table, 248)[[0, 19, 20, 21, 24, 247]].flatten().tolist()
        [0.0, 19.0, 20.0, 20.25, 21.0, 76.75]
    """
    n = len(positions)
    ratio = (n - KEPT) / (length - KEPT)
    x = KEPT + torch.arange(length - KEPT) * ratio
    # Rows beyond the last are extrapolated from the last two.
    row = x.long().clamp(max=n - 2)
    weight = (x - row)[:, None].to(positions)
    row = row.to(positions.device)
    start = positions[row]
    step = positions[row + 1] - start
    return torch.cat([positions[:KEPT], start + weight * step])


def extend_context(network: nn.Module, name: str, length: int) -> None:
    """Gives the text tower `length` positions, with the causal mask of that size.

    Captions of up to 20 tokens keep their embeddings; of longer ones the positions change.
    """
    text: Any = getattr(network, "text", network)
    positions = getattr(text, "positional_embedding", None)
    pool = getattr(text, "text_pool_type", getattr(text, "pool_type", ""))
    mask = getattr(text, "attn_mask", None)
    pools_end = pool in ("argmax", "eos") and getattr(text, "cls_emb", None) is None
    wide = positions is not None and KEPT + 1 < len(positions) <= length
    if positions is None or mask is None or not (pools_end and wide):
        raise UserError(
            f"expected a text tower that attends to the left, pools the end token and has from "
            f"{KEPT + 2} to {length} positions, got that of {name}: leave context_length out, or "
            "choose a larger one"
        )
    if length == len(positions):
        return
    text.positional_embedding = nn.Parameter(stretched(positions.detach(), length))
    # Each position attends to those before it and to itself.
    text.attn_mask = mask.new_full((length, length), float("-inf")).triu(1)
    text.context_length = length
    if hasattr(text, "num_pos"):
        text.num_pos = length
