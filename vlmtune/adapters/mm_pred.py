"""MM-Pred: the MM-Adapter's fusion with a linear layer as prediction head.

In: image and text tokens. Out: log-odds of each chosen pair. Never: a change of the towers.
"""

from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import PairScores
from vlmtune.adapters.fused import FusedAdapter
from vlmtune.adapters.fusion_styles.base import ClsOutputs
from vlmtune.backbones.base import Backbone


class MMPred(FusedAdapter):
    r"""Scores image I against query Q by $f(I, Q) = u^\top \mathrm{out} + b$, as log-odds.

    out is the [CLS] output of the fusion, as in `MMAdapter`, which compares it with the frozen
    text instead. A style with several [CLS] tokens (FIBER, FIBER-MM) has all outputs, one after the
    other, as out. The paper names their cosine as the score of those styles, which here is the
    MM-Adapter, and leaves MM-Pred open; a linear layer on both is our reading. Options are those of
    `FusedAdapter`.

    Choose it to compare with `MMAdapter`, or where scores should be log-odds from the start.

    - Requirements: captions with hard negatives; tokens of both towers may be stored.
    - Recommended: `PairBCE` with `MixedPairs`.
    - Relations: the fusion of `MMAdapter` with another head.
    - Config: `--model.adapter mm_pred`.

    Source: Cola (Ray et al. 2023), sections 4 and 11.1 ("a fully-connected layer on the [CLS] token
    output"); its names are as in `MMAdapter`. u and b are `predict`, w + 1 numbers (2w + 1 with
    two [CLS] tokens): with the MDETR style 7,753,217 parameters on CLIP ViT-B/32.
    """

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        self.predict = nn.Linear(self.style.queries * backbone.text_width, 1)

    @override
    def score_head(self, fused: ClsOutputs, target: Float[Tensor, "P g"]) -> PairScores:
        return self.predict(fused.flatten(1))[:, 0]
