"""The nearest rows of a bank of vectors, exactly, in bounded memory."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

COLUMNS = 2**15
"""Rows compared with a block at a time."""

_LAST = 2**32 - 1


def nearest(
    bank: Float[Tensor, "n d"], rows: range, k: int, columns: int = COLUMNS
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k"]]:
    r"""Finds the k other rows of a bank with the highest cosine to each of `rows`.

    $\cos_{ij} = x_i \cdot x_j$ for normalised x. Of equal cosines the lower row comes first.
    At most b x (k + `columns`) cosines are in memory.

    Args:
        bank: n vectors, normalised.
        rows: Which b of them to find neighbours for.
        k: How many, below n.
        columns: Vectors compared at a time.

    Returns:
        The rows, best first, and their cosines.

    Example:
        >>> nearest(torch.eye(3), range(1), 2)[0]
        tensor([[1, 2]])
    """
    queries = bank[rows.start : rows.stop].float()
    own = torch.arange(rows.start, rows.stop, device=bank.device)
    best = torch.empty(len(rows), 0, dtype=torch.int64, device=bank.device)
    for start in range(0, len(bank), columns):
        part = bank[start : start + columns].float()
        number = torch.arange(start, start + len(part), device=bank.device)
        keys = _keys(queries @ part.T, number)
        keys.masked_fill_(own[:, None] == number, torch.iinfo(torch.int64).min)
        keys = torch.cat([best, keys], dim=1)
        best = keys.topk(min(k, keys.shape[1]), dim=1).values
    return _LAST - (best & _LAST), _values(best)


def _keys(values: Float[Tensor, "b c"], number: Int[Tensor, "c"]) -> Int[Tensor, "b c"]:
    """Integers that sort by value, and where values are equal by falling number; all distinct."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.long() << 32) | (_LAST - number)


def _values(keys: Int[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    ordered = (keys >> 32).int()
    return torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
