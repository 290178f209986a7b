"""All true pairs with hard negatives drawn by the scores of the backbone (ALBEF)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.sampling import check_temperature, drawn
from vlmtune.types import Targets


class HardPairs(PairPolicy):
    r"""All true pairs, and for each a hard text for its image and a hard image for its text.

    A false text j of image i is drawn with probability in proportion to $e^{s_{ij} / \tau}$, where
    s are the scores of the frozen backbone's embeddings (ITC); images are drawn likewise within the
    column of a text. An image with several true texts gets as many texts, without replacement, and
    a text as many images. A pair that is drawn from both sides is scored once.

    Source: Li et al. 2021 (ALBEF), section 3.2; FIBER's `*_hardneg` fine-tuning does the same. Both
    take any other caption of the batch for false; here captions known to be true never are.

    Args:
        texts: Hard texts for each true pair.
        images: Hard images for each true pair.
        temperature: $\tau$; the scores already have the backbone's own.

    Raises:
        UserError: A count is negative, both are 0, or the temperature is not positive.

    Example:
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> targets, generator = Targets(eye, eye, eye), torch.Generator()
        >>> HardPairs()(targets, generator, torch.zeros(2, 2)).all()
        tensor(True)
    """

    needs_reference = True

    def __init__(self, texts: int = 1, images: int = 1, temperature: float = 1.0) -> None:
        if min(texts, images) < 0 or texts + images == 0:
            raise UserError(
                f"expected counts of hard pairs >= 0 with one above 0, got {texts=}, {images=}: "
                "raise one"
            )
        check_temperature(temperature)
        self.texts, self.images, self.temperature = texts, images, temperature

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        assert reference is not None
        truth, logits = targets.truth, reference / self.temperature
        texts = drawn(logits, ~truth, self.texts * truth.sum(dim=1), generator)
        images = drawn(logits.T, ~truth.T, self.images * truth.sum(dim=0), generator)
        return truth | texts | images.T
