"""One true text and several false ones for each image (METER)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.sampling import check_counts, check_temperature, drawn
from vlmtune.types import Targets


class RankingPairs(PairPolicy):
    r"""For each image one of its true texts and `negatives` false ones, some of them hard.

    First `mined` texts are drawn uniformly from those that a similarity cache finds hard for the
    image (`Targets.mined_negatives`); then `hard` others with probability in proportion to
    $e^{s_{ij} / \tau}$, without replacement; then uniformly from the false texts that are left,
    also in the place of mined ones where the batch has too few. Without `hard` ones no scores of
    the backbone are read, so that it need not have embeddings.

    Source: METER's released retrieval code (Dou et al. 2022) scores one true caption against 15
    random ones, of the corpus rather than of the batch, and without excluding the image's own.
    EqSim (Wang et al. 2023), appendix C, makes 8 of the 15 hard ones by cached matching scores
    (`mined=8`), and adds the images of the 15; how it draws them is not said.

    Args:
        negatives: False texts per image.
        hard: How many of them are hard by the scores of the backbone.
        mirrored: Also score the images that the false texts are true of: with the false text, and
            with the true text they were drawn against. EqSim compares these four scores.
        temperature: $\tau$; the scores already have the backbone's own.
        mined: How many of them are texts of mined neighbours, which `MinedNeighbours` adds.

    Raises:
        UserError: Counts are out of range, or the temperature is not positive.

    Example:
        >>> truth = torch.tensor([[True, False, False, False]])
        >>> RankingPairs(negatives=2)(Targets(truth, truth, truth), torch.Generator()).sum()
        tensor(3)
    """

    def __init__(
        self,
        negatives: int = 15,
        hard: int = 0,
        mirrored: bool = False,
        temperature: float = 1.0,
        mined: int = 0,
    ) -> None:
        check_counts(negatives, hard, mined)
        check_temperature(temperature)
        self.negatives, self.hard, self.mirrored = negatives, hard, mirrored
        self.temperature, self.mined = temperature, mined
        self.needs_reference, self.needs_mined_negatives = hard > 0, mined > 0

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        truth = targets.truth
        uniform, each = torch.zeros(truth.shape, device=truth.device), truth.any(dim=1).long()
        true = drawn(uniform, truth, each, generator)
        false = torch.zeros_like(truth)
        if self.mined and targets.mined_negatives is not None:
            false = drawn(uniform, targets.mined_negatives & ~truth, self.mined * each, generator)
        if self.hard:
            assert reference is not None
            logits = reference / self.temperature
            false |= drawn(logits, ~truth & ~false, self.hard * each, generator)
        left = self.negatives * each - false.sum(dim=1)
        false |= drawn(uniform, ~truth & ~false, left, generator)
        return true | false | (_mirrored(truth, true, false) if self.mirrored else false)


def _mirrored(
    truth: Bool[Tensor, "N M"], true: Bool[Tensor, "N M"], false: Bool[Tensor, "N M"]
) -> Bool[Tensor, "N M"]:
    """Images of the false texts, with those texts and with the true texts they stood against."""
    partners = (false.float() @ truth.float().T) > 0  # (i, a): a text of image a is false of i
    across = (partners.float().T @ true.float()) > 0
    return across | (truth & false.any(dim=0))
