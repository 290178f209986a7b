"""What a pair policy is: it chooses which pairs a joint adapter scores.

In: targets and a generator. Out: a mask of pairs to score. Never: a score.

Laws (tests/contracts/test_pairs.py): every image with a true text gets one; no known true pair
replaces a negative; the generator is the only source of chance, and every device chooses alike.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt
from torch import Generator, Tensor

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.types import Targets

Mask = Bool[Tensor, "N M"]
Reference = Float[Tensor, "N M"] | None


class PairPolicy(Configured, ABC):
    """Chooses the pairs to score; a policy implements `__call__`.

    Attributes:
        needs_reference: True if it needs the scores of the frozen backbone.
        needs_mined_negatives: True if it takes mined negatives, which training batches must then
            contain.
    """

    needs_reference: bool = False
    needs_mined_negatives: bool = False

    @abstractmethod
    def __call__(self, targets: Targets, generator: Generator, reference: Reference = None) -> Mask:
        """Returns True at the pairs to score; `generator` is the only source of chance."""


class NegativePairs(PairPolicy):
    """One true text per image and a number of false ones, some of them hard.

    Args:
        negatives: False texts per image.
        hard: How many of them are hard by the scores of the backbone.
        mined: How many of them are mined negatives, which `MinedNeighbours` adds to the batch.
            Other negatives replace missing mined negatives.
    """

    def __init__(
        self, negatives: PositiveInt = 15, hard: NonNegativeInt = 0, mined: NonNegativeInt = 0
    ) -> None:
        if hard + mined > negatives:
            raise UserError(
                f"expected hard and mined negatives among {negatives}, got {hard=} and {mined=}: "
                "raise negatives"
            )
        self.negatives = negatives
        self.hard = hard
        self.mined = mined
        self.needs_reference = hard > 0
        self.needs_mined_negatives = mined > 0


def sample_rows(
    logits: Float[Tensor, "rows columns"],
    candidates: Bool[Tensor, "rows columns"],
    counts: Int[Tensor, "rows"],
    generator: Generator,
) -> Bool[Tensor, "rows columns"]:
    """Samples up to `counts` candidates of each row, in proportion to the softmax of `logits`.

    It samples without replacement, by the largest of logits plus Gumbel noise.
    Source: Kool et al. 2019, arXiv 1903.06059.
    """
    noise = gumbel(logits.shape, generator).to(logits.device)
    keys = logits.detach().double() + noise
    keys = keys.masked_fill(~candidates, -torch.inf)
    # The argsort of an order is the rank of each entry. Rows take different counts, so no top-k.
    order = keys.argsort(dim=1, descending=True)
    rank = order.argsort(dim=1)
    within_count = rank < counts[:, None]
    return candidates & within_count


def gumbel(shape: torch.Size, generator: Generator) -> Float[Tensor, "..."]:
    """Gumbel noise from the CPU, so that one seed gives one choice on every device."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    exponential = -uniform.clamp(1e-300, 1 - 1e-16).log()
    return -exponential.log()


def with_mirrored(
    true: Bool[Tensor, "N M"], false: Bool[Tensor, "N M"], truth: Bool[Tensor, "N M"]
) -> Bool[Tensor, "N M"]:
    """Adds what EqSim compares with each false pair: four scores of two images and two texts.

    A false text t of image i that is true of image a adds the pairs (a, t) and (a, u), u each
    chosen true text of i. A text without an image, such as a hard-negative caption, adds none.
    `true` and `false` are the chosen pairs.
    """
    # A product of 0 and 1 counts the texts that are false of image i and true of image a.
    shared_texts = false.float() @ truth.float().T
    partner = shared_texts > 0
    # An image a gets the true texts that were chosen for its partners i.
    partner_texts = partner.float().T @ true.float()
    mirrored = partner_texts > 0
    # An image also gets its text that was chosen as false of another image.
    chosen_as_false = false.any(dim=0)
    return true | false | mirrored | (truth & chosen_as_false)
