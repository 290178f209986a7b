"""Matching: the matching head of a fusion encoder, frozen or with its last blocks trained.

In: the features that the backbone's fusion takes. Out: log-odds of pairs.
Never: new weights; those it trains are the backbone's.
"""

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.adapters.base import JointAdapter
from vlmtune.adapters.towers import unfreeze
from vlmtune.backbones.advice import backbones_with
from vlmtune.backbones.base import Backbone, Fusion
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.errors import UserError
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

    Source: Li et al. 2021 (ALBEF), section 3.2, for matching heads; Ray et al. 2023 (Cola), section
    5.2, for tuning the last layers.

    Args:
        blocks: n.

    Example:
        >>> Matching(blocks=2).joint
        True
    """

    def __init__(self, blocks: int = 0) -> None:
        super().__init__()
        if blocks < 0:
            raise UserError(f"expected blocks >= 0 to train, got {blocks}: correct `blocks`")
        self.blocks = blocks

    @override
    def attach(self, backbone: Backbone) -> None:
        fusion = backbone.fusion
        if fusion is None:
            raise UserError(
                f"expected a backbone with a matching head, got {type(backbone).__name__} "
                f"({backbone.no_fusion}): choose {backbones_with('matching')}"
            )
        if self.blocks > len(fusion.blocks):
            raise UserError(
                f"expected at most {len(fusion.blocks)} blocks to train, which is all of the "
                f"fusion, got {self.blocks}: lower `blocks`"
            )
        self.fusion: Fusion = fusion
        self.image_input, self.text_input = fusion.image_input, fusion.text_input
        self.broadcasts_image = fusion.reuses_image
        super().attach(backbone)
        last = fusion.blocks[len(fusion.blocks) - self.blocks :]
        if last:
            unfreeze(backbone, [*(p for block in last for p in block.parameters()), *fusion.tail])
        trained = {id(module) for block in last for module in block.modules()}
        self._frozen_modules = [
            module for module in backbone.modules() if id(module) not in trained
        ]

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        with evaluation_mode(*self._frozen_modules, recurse=False):
            return self.fusion.prepare_image(image)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        with evaluation_mode(*self._frozen_modules, recurse=False):
            return self.fusion.prepare_text(text.trimmed())

    @override
    def score_pairs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        return self.fusion.match(image, text)

    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        """Returns what the matching head reads of prepared image i and text i."""
        return self.fusion.cls_outputs(image, text)

    @override
    def pair_bytes(self, image: Tokens, text: Tokens, training: bool) -> int:
        # A dozen tensors of the pair's tokens, in training for each block.
        tokens = image.values.shape[1] + text.values.shape[1]
        size = 48 * tokens * image.values.shape[2]
        return 2 * size * self.blocks if training else size
