"""Matching: the matching head of a fusion encoder, frozen or with its last blocks trained.

In: the features that the backbone's fusion takes. Out: log-odds of pairs.
Never: new weights; those it trains are the backbone's.
"""

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import JointAdapter, PairScores
from vlmtune.adapters.towers import check_blocks, fusion_of, unfreeze
from vlmtune.backbones.base import Backbone, Fusion
from vlmtune.types import Tokens


class Matching(JointAdapter[Tokens, Tokens, Tokens]):
    r"""Scores by the log-odds of the backbone's own matching head, $s_{ij} = F(x_i, y_j)$.

    $x$ and $y$ are the features of an image and a caption that the fusion $F$ takes. They are
    frozen, computed once for each image and caption, and may be stored. With `blocks` 0 nothing
    is trained: the zero-shot scores of image-text matching (ITM). With n the last n blocks of the
    fusion, the layers after them and the matching head are trained. They are the backbone's own
    weights, so the first scores are zero-shot for every n.

    The score depends on the backbone: the difference of the two logits of a matching head, or
    ViLT's single output, which ranks captions.

    Choose it to score with an unchanged fusion encoder, or to train its last blocks.

    - Requirements: a backbone with a matching head; `blocks` above 0 to train.
    - Recommended: `ITM` with `HardPairs` or `RankingPairs`.
    - Relations: `FusionTuning` trains the towers too, and contrastive scores beside these.
    - Config: `--model.adapter matching`.

    Source: Li et al. 2021 (ALBEF), section 3.2, for matching heads; Ray et al. 2023 (Cola), section
    5.2, for tuning the last layers.

    Args:
        blocks: n.

    Example:
        >>> Matching(blocks=2).joint
        True
    """

    def __init__(self, blocks: NonNegativeInt = 0) -> None:
        super().__init__()
        self.blocks = blocks

    @override
    def attach(self, backbone: Backbone) -> None:
        fusion = fusion_of(backbone, "matching")
        check_blocks(self.blocks, len(fusion.blocks), "blocks")
        self.fusion: Fusion = fusion
        self.image_input = fusion.image_input
        self.text_input = fusion.text_input
        # Some fusions take one image for all of its captions without a copy.
        self.broadcasts_image = fusion.reuses_image
        super().attach(backbone)
        if self.blocks:
            unfreeze(backbone, self._last_weights())

    def _last_weights(self) -> list[nn.Parameter]:
        """The weights of the last blocks of the fusion and of what follows them."""
        weights: list[nn.Parameter] = []
        first = len(self.fusion.blocks) - self.blocks
        for block in self.fusion.blocks[first:]:
            weights += block.parameters()
        weights += self.fusion.tail
        return weights

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        with torch.no_grad():
            return self.fusion.prepare_image(image)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        with torch.no_grad():
            return self.fusion.prepare_text(text.trimmed())

    @override
    def score_pairs(self, image: Tokens, text: Tokens) -> PairScores:
        return self.fusion.match(image, text)

    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        """Returns what the matching head reads of prepared image i and text i."""
        return self.fusion.cls_outputs(image, text)

    @override
    def pair_bytes(self, image: Tokens, text: Tokens, training: bool) -> int:
        # A dozen tensors of the pair's tokens, in training for each block.
        tokens = image.token_count + text.token_count
        width = image.values.shape[2]
        size = 48 * tokens * width
        return 2 * size * self.blocks if training else size
