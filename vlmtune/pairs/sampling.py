"""Sampling without replacement, and the checks that pair policies share."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.errors import UserError


def drawn(
    logits: Float[Tensor, "rows columns"],
    candidates: Bool[Tensor, "rows columns"],
    counts: Int[Tensor, "rows"],
    generator: torch.Generator,
) -> Bool[Tensor, "rows columns"]:
    """Draws candidates of each row, one after the other in proportion to the softmax of `logits`.

    Adding Gumbel noise and taking the largest draws without replacement (Kool et al. 2019,
    arXiv 1903.06059).

    Args:
        logits: Log-probabilities up to a constant.
        candidates: What may be drawn.
        counts: How many at most.
        generator: The source of chance.
    """
    keys = logits.detach().double() + gumbel(logits.shape, generator).to(logits.device)
    keys = keys.masked_fill(~candidates, -torch.inf)
    place = keys.argsort(dim=1, descending=True).argsort(dim=1)
    return candidates & (place < counts[:, None])


def gumbel(shape: torch.Size, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Noise under which the largest of logits are draws in proportion to their softmax."""
    # Drawn on the CPU so that one seed gives one choice on every device.
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(1e-300, 1 - 1e-16).log()).log()


def check_counts(negatives: int, hard: int, mined: int) -> None:
    """Raises a `UserError` where there are no negatives, or more hard and mined ones than those."""
    if negatives < 1 or min(hard, mined) < 0 or hard + mined > negatives:
        raise UserError(
            "expected at least 1 negative and from 0 to all of them hard or mined, got "
            f"{negatives=}, {hard=}, {mined=}: correct them"
        )


def check_temperature(temperature: float) -> None:
    """Raises a `UserError` where a temperature is not positive."""
    if not temperature > 0:
        raise UserError(f"expected a temperature above 0, got {temperature}: raise it")
