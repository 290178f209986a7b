"""Sampling without replacement: scores and candidates come in, a mask goes out.

It never samples on an accelerator: one seed gives one choice on every device.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sample_rows(
    logits: Float[Tensor, "rows columns"],
    candidates: Bool[Tensor, "rows columns"],
    counts: Int[Tensor, "rows"],
    generator: torch.Generator,
) -> Bool[Tensor, "rows columns"]:
    """Samples candidates of each row without replacement, in proportion to the softmax of `logits`.

    The largest of logits plus Gumbel noise are such a sample (Kool et al. 2019, arXiv 1903.06059).

    Args:
        logits: Log-probabilities up to a constant.
        candidates: Where a sample may lie.
        counts: How many at most.
        generator: The source of chance.
    """
    keys = logits.detach().double() + gumbel(logits.shape, generator).to(logits.device)
    keys = keys.masked_fill(~candidates, -torch.inf)
    rank = keys.argsort(dim=1, descending=True).argsort(dim=1)
    return candidates & (rank < counts[:, None])


def gumbel(shape: torch.Size, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Gumbel noise, taken on the CPU so that one seed gives one choice on every device."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(1e-300, 1 - 1e-16).log()).log()
