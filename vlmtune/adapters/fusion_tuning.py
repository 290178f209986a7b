"""Fusion tuning: a fusion encoder with its towers, and both of its scores.

In: the features that the backbone's fusion takes. Out: log-odds of pairs, and embeddings of the
same features where wanted. Never: new weights; those it trains are the backbone's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import Adapter, DualAdapter, Vectors
from vlmtune.adapters.matching import Matching
from vlmtune.adapters.towers import image_tower, params_with_grad, text_tower, unfreeze
from vlmtune.backbones.base import Backbone, TextTower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Tokens


class FusionTuning(Matching):
    r"""Trains a fusion encoder by its matching scores and, in the same run, its embeddings.

    Matching (ITM): $s_{ij} = F(x_i, y_j)$, the log-odds of the backbone's own matching head, of
    the pairs that the pair policy chooses. Contrast (ITC): $e^{\tau} \cos(f(x_i), g(y_j)) + b$, $f$
    and $g$ the ends of the two towers, of all pairs. Objectives read the matching scores;
    `OnEmbeddings` makes one read the contrastive scores. Pair policies choose hard pairs by the
    contrastive scores of the current weights, as ALBEF and FIBER do; without `contrast` they use
    the scores of the frozen backbone.

    With `towers`, all weights are trained on which a score depends. Without `towers`, both towers
    stay frozen and their features may be stored; the last `blocks` of the fusion, the layers after
    them, and the projections of the embeddings are trained. BLIP's fusion is its text tower with
    cross-attention: blocks that the fusion trains embed captions, too.

    Choose it to fine-tune a fusion encoder, as ALBEF, METER and FIBER do.

    - Requirements: a backbone with a matching head; each step runs the towers if `towers` is true.
    - Recommended: `ITM` with `HardPairs`; with `contrast` also `OnEmbeddings` of an `InfoNCE`.
    - Relations: `Matching(n)` trains the last n blocks without contrastive scores.
    - Config: `--model.adapter fusion_tuning`.

    Source: Li et al. 2021 (ALBEF), section 3.2, and Dou et al. 2022 (FIBER), section 3.2, for both
    scores in one run; METER and FIBER for `top`, whose released code multiplies the rates of
    cross-modal layers and heads by 5.

    Args:
        towers: Whether both towers are trained.
        blocks: Blocks of the fusion to train, counted from the last; None for all. Trained towers
            need all.
        contrast: Whether there are contrastive scores, which an objective must then read.
        top: Factor on the learning rate of the fusion and the heads.
        scored_by: The scores of evaluation: "matching", or "contrast", as FIBER retrieves.
        learn_scale: Whether $\tau$ and $b$ are trained.

    Example:
        >>> FusionTuning(towers=True, contrast=True).contrast.joint
        False
    """

    def __init__(
        self,
        towers: bool = False,
        blocks: PositiveInt | None = None,
        contrast: bool = False,
        top: PositiveFloat = 1.0,
        scored_by: Literal["matching", "contrast"] = "matching",
        learn_scale: bool = True,
    ) -> None:
        # How many blocks "all" means is known once the backbone is; `attach` sets it.
        count = 1 if blocks is None else blocks
        super().__init__(count)
        if towers and blocks is not None:
            raise UserError(
                f"expected all blocks where towers are trained, got {blocks=}: leave `blocks` out"
            )
        if scored_by == "contrast" and not contrast:
            raise UserError("expected contrast where it scores, got none: set contrast to true")
        self.towers = towers
        self.top = top
        self.scored_by = scored_by
        self._all_blocks = blocks is None
        self.contrast = EndsOfTowers(learn_scale) if contrast else None

    @property
    @override
    def scoring(self) -> Adapter:
        if self.scored_by == "contrast" and self.contrast is not None:
            return self.contrast
        return self

    @override
    def attach(self, backbone: Backbone) -> None:
        ends = cast(EndsOfTowers | None, self.contrast)
        if self._all_blocks and backbone.fusion is not None:
            self.blocks = len(backbone.fusion.blocks)
        if ends is not None:
            ends.attach(backbone)
        super().attach(backbone)
        if self.towers:
            self.image_input = replace(self.image_input, frozen=False)
            self.text_input = replace(self.text_input, frozen=False)
        # Rates of the fusion and the heads are scaled by `top`, see `lr_scales`.
        self._top = self._last_weights()
        matched = self._used(backbone, self._match)
        if self.towers:
            unfreeze(backbone, matched)
        if ends is None:
            return
        # Some weights serve both scores, such as BLIP's text tower with its cross-attention.
        embedded = self._used(backbone, ends.embed_both)
        # Projections of the embeddings alone: what matching uses too, the fusion trains.
        projections = set(ends.tail).difference(matched)
        heads = [parameter for parameter in embedded if parameter in projections]
        self._top += heads
        trained = embedded if self.towers else heads
        unfreeze(backbone, trained)

    def _used(
        self, backbone: Backbone, score: Callable[[Tokens, Tokens], Vectors]
    ) -> list[nn.Parameter]:
        """The weights that a function of the features depends on, by way of the features too."""
        # Any pair will do: only which weights have a gradient counts.
        pixels = backbone.blank()
        image_input = replace(self.image_input, frozen=False)
        text_input = replace(self.text_input, frozen=False)

        def scores() -> Tensor:
            image = cast(Tokens, backbone.encode_image(pixels, image_input))
            text = cast(Tokens, backbone.encode_text(["a"], text_input))
            return score(image, text)

        return params_with_grad(scores, backbone.parameters())

    def _match(self, image: Tokens, text: Tokens) -> Vectors:
        prepared_image = self.fusion.prepare_image(image)
        prepared_text = self.fusion.prepare_text(text)
        return self.fusion.match(prepared_image, prepared_text)[:, None]

    @override
    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        return [(parameter, self.top) for parameter in self._top]

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        if self.towers:
            return self.fusion.prepare_image(image)
        return super().prepare_image(image)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        if self.towers:
            return self.fusion.prepare_text(text.trimmed())
        return super().prepare_text(text)


class EndsOfTowers(DualAdapter[Tokens, Tokens]):
    r"""Contrastive scores from the features that a fusion takes.

    $s_{ij} = e^{\tau} \cos(f(x_i), g(y_j)) + b$, where $f$ and $g$ run what is left of the two
    towers, with their final norms and projections.

    Attributes:
        tail: The weights after the last blocks of both towers.
    """

    @override
    def attach(self, backbone: Backbone) -> None:
        self._towers = image_tower(backbone), text_tower(backbone)
        if backbone.fusion is None:  # which `Matching.attach` refuses
            return
        self.image_input = backbone.fusion.image_input
        self.text_input = backbone.fusion.text_input
        super().attach(backbone)
        self.tail: list[nn.Parameter] = []
        for tower in self._towers:
            self.tail += tower.tail

    def embed_both(self, image: Tokens, text: Tokens) -> Vectors:
        """Embeds images and texts of one number, side by side."""
        images = self.embed_image(image)
        texts = self.embed_text(text)
        return torch.cat([images, texts], dim=1)

    @override
    def embed_image(self, image: Tokens) -> Vectors:
        return self._embed(0, image, self.image_input)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        return self._embed(1, text.trimmed(), self.text_input)

    def _embed(self, side: int, state: Tokens, spec: FeatureSpec) -> Vectors:
        tower = self._towers[side]
        first = tower.layers + 1 + spec.layer
        if spec.kind == "words":
            assert isinstance(tower, TextTower)
            first = 0
            state = tower.start(state)
        last = tower.run(state, first, tower.layers)
        return tower.finish(last)
