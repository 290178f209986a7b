"""All true pairs, with hard negatives sampled by the scores of the backbone (ALBEF).

In: targets and reference scores. Out: a mask. Never: scores of the trained adapter.
"""

from torch import Generator
from typing_extensions import override

from vlmtune.pairs.base import Mask, PairPolicy, Reference, sample_rows
from vlmtune.types import Targets


class HardPairs(PairPolicy):
    r"""All true pairs, and for each a hard text for its image and a hard image for its text.

    A false text j of image i is sampled with probability in proportion to $e^{s_{ij}}$, where s are
    the scores of the frozen backbone's embeddings (ITC). Images are sampled likewise within the
    column of a text. An image with several true texts gets as many hard texts, without replacement,
    and a text as many hard images. A pair sampled from both sides is scored once.

    Source: Li et al. 2021 (ALBEF), section 3.2; FIBER's `*_hardneg` fine-tuning does the same. Both
    treat every other caption of the batch as false; here known true captions are left out.

    Example:
        >>> import torch
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> targets, generator = Targets(eye, eye, eye), torch.Generator()
        >>> HardPairs()(targets, generator, torch.zeros(2, 2)).all()
        tensor(True)
    """

    needs_reference = True

    @override
    def __call__(self, targets: Targets, generator: Generator, reference: Reference = None) -> Mask:
        assert reference is not None
        truth = targets.truth
        texts_per_image = truth.sum(dim=1)
        texts = sample_rows(reference, ~truth, texts_per_image, generator)
        # Columns are sampled as rows are; a pair of both samples is scored once.
        images_per_text = truth.sum(dim=0)
        images = sample_rows(reference.T, ~truth.T, images_per_text, generator)
        return truth | texts | images.T
