"""MM-Adapter: a light multimodal transformer over frozen token features, Cola's best strategy.

In: image and text tokens. Out: a score of each chosen pair. Never: a change of the towers.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import override

from vlmtune.adapters.base import PairScores, Scale
from vlmtune.adapters.fused import FusedAdapter
from vlmtune.adapters.fusion_styles.base import ClsOutputs
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.types import Tokens


class MMAdapter(FusedAdapter):
    r"""Scores image I against query Q by the cosine of one fused token to the query's own tokens.

    $f(I, Q) = e^{\tau} \frac{1}{N_q} \sum_i \cos(\mathrm{out}, q_i) + b$, with out the [CLS] output
    of the fusion; with several [CLS] tokens (`Mdetr.cls_tokens`) the scores are averaged. A style
    with a [CLS] token of each modality (FIBER, FIBER-MM) is scored by their cosine, $f(I, Q) =
    e^{\tau} \cos(\mathrm{out}_T, \mathrm{out}_I) + b$, as section 10.1 says; there the frozen text
    is not a target.

    Choose it for compositions of attributes and objects on frozen towers.

    - Requirements: captions with hard negatives; tokens of both towers may be stored.
    - Recommended: `PairBCE` with `MixedPairs`, as most pairs of a batch are easy.
    - Relations: `MMPred` has a linear head, `FTLate` no fusion; `GroundedWords` can recall by
      vectors.
    - Config: `--model.adapter mm_adapter`.

    Source: Cola (Ray et al. 2023), section 4 and, for the five fusion styles, section 10.1 and
    Table 5. We use its letters: I are the image's patch tokens (t x v), Q the text's tokens (t x
    w), $q_i$ its $N_q$ words (start and end tokens take part in attention, not in the mean), [CLS]
    `query`. Both are read at the layer before the last, as in the released snippet; section 11.1
    says so of FT-Late alone. `project` maps v to w. $\tau$ and $b$ are ours: the paper's cosine in
    [-1, 1] cannot fit a sigmoid loss.

    The snippet that the authors released differs from the paper in two ways. `cosine=False`
    averages dot products (without $\tau$, $b$), and `masked=False` attends to padding, up to the
    longest caption of the batch. In that form, with its defaults (MDETR style, 4 heads, 1 + 1
    layers, post-norm, ReLU, 2,048 hidden units, dropout 0.1), it has 7,752,704 parameters on CLIP
    ViT-B/32, the 7.8M of Table 5. Each style's docstring has its own count.

    Args:
        cosine: Cosine (the paper) rather than dot product (the snippet).
        initial_scale: $e^{\tau}$ at the start.
        options: Options of `FusedAdapter`.

    Example:
        >>> from vlmtune.adapters.fusion_styles.albef import Albef
        >>> MMAdapter(fusion=Albef()).spec()["init_args"]["fusion"]["class_path"]
        'vlmtune.adapters.fusion_styles.albef.Albef'
    """

    def __init__(self, cosine: bool = True, initial_scale: Scale = 10.0, **options: Any) -> None:
        super().__init__(**options)
        self.cosine = cosine
        self.initial_scale = initial_scale

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        if self.cosine:
            log_scale = math.log(self.initial_scale)
            self.log_scale = nn.Parameter(torch.tensor(log_scale))
            self.bias = nn.Parameter(torch.zeros(()))

    @property
    @override
    def target_width(self) -> int:
        return 0 if self.style.two_sided else self.query.shape[2]

    @override
    def target(self, text: Tokens) -> Float[Tensor, "n g"]:
        if not self.target_width:
            return super().target(text)
        # The target is the frozen text: start and end tokens carry no word.
        words = text.values
        if self.cosine:
            # The mean of cosines is the product with the mean of normalised words.
            words = normalize(words, dim=-1)
        return masked_mean(words, word_mask(text.mask, self.special))

    @override
    def score_head(self, fused: ClsOutputs, target: Float[Tensor, "P g"]) -> PairScores:
        if self.cosine:
            fused = normalize(fused, dim=-1)
        if self.style.two_sided:
            of_text = fused[:, 0]
            of_image = fused[:, 1]
            products = (of_text * of_image).sum(dim=-1)
        else:
            products = (fused * target[:, None]).sum(dim=-1)
            products = products.mean(dim=1)  # over several [CLS] tokens
        if not self.cosine:
            return products
        return self.log_scale.exp() * products + self.bias
