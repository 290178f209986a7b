"""PeakPatch's score head: a small correction of the frozen score, from two layers of the text.

In: embeddings of images, states of texts. Out: a score of each chosen pair.
Never: a change of the towers, or a correction beyond its bound.
"""

import math

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import override

from vlmtune.adapters.base import Dropout, EarlyLayer, JointAdapter, PairScores, Scale, Vectors
from vlmtune.adapters.towers import run_last, text_tower
from vlmtune.backbones.base import Backbone, TextTower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import FeatureSpec, Pooled, Tokens

HIDDEN = 256  # units of the MLPs over embeddings
OUTPUT = 128  # numbers that each of them gives, and units of the last MLP
PAPER_DEPTH = 7 / 12  # how deep in the tower the paper reads its earlier layer


class PeakPatch(JointAdapter[Pooled, Tokens, Pooled]):
    r"""The frozen cosine plus a correction from how the text reads at two depths of its tower.

    $s(I, T) = e^{\tau} \big( \cos(v, w_L) + c \tanh(h(\phi)) \big) + b$ with
    $\phi = [\cos(v, w_l), \cos(v, w_L), m_1([w_l, w_L]), m_2(w_L \odot v)]$

    v and $w_L$ are the normalised embeddings of the frozen backbone. $w_l$ is what its final norm
    and projection make of the pooled token (CLIP's [EOS]) after block l already, normalised too:
    an earlier layer may still encode what the last layer has lost, such as a "no". $m_1$ and $m_2$
    are MLPs (linear to 256, layer norm, GELU, linear to 128), h is linear to 128, GELU, dropout and
    linear to 1. Weights start with a standard deviation of 0.02, those of the last layer with
    0.001: untrained scores differ from the backbone's by less than a thousandth of a cosine.

    Choose it for negation, and wherever scores must stay near the frozen ones.

    - Requirements: captions with hard negatives; a text tower that runs block by block. Images need
      only their embeddings, so that an index of them stays valid.
    - Recommended: `InfoNCE` with `initial_scale: 14.3`, the paper's temperature of 0.07. `PairBCE`
      needs `learn_scale`, and may push all corrections to the bound, as most pairs are false.
    - Relations: a `TextMap` changes the text alone; `GroundedWords` adds to the frozen score what
      words read in patches. `Distillation` keeps scores near the frozen ones.
    - Config: `--model.adapter peak_patch`.

    Source: PeakPatch (arXiv 2607.23271), the score head (SCN); its embedding head (ECN) is left
    out. On CLIP ViT-B/32 and layers 7 and 12 it has the paper's 493,825 parameters; dropout and
    initial values are those of the released code. The released loss has a further term, 0.1 times
    the mean square of the correction. In vlmtune an adapter adds no term to a loss, so it is left
    out: the bound, weight decay and, at the backbone's scale, `Distillation` keep corrections
    small. Training $\tau$ and b, where the paper's temperature is fixed, is ours.

    Args:
        early_layer: l, counted from the end (-6 is layer 7 of 12); None for seven twelfths of the
            tower, rounded, as in the paper.
        bound: c, the largest correction of a cosine.
        dropout: Dropout probability in training.
        learn_scale: Whether $\tau$ and $b$ are trained, which a sigmoid loss needs.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Example:
        >>> PeakPatch(early_layer=-6).text_input
        FeatureSpec(kind='state', layer=-6, frozen=True)
    """

    def __init__(
        self,
        early_layer: EarlyLayer | None = None,
        bound: PositiveFloat = 0.2,
        dropout: Dropout = 0.1,
        learn_scale: bool = False,
        initial_scale: Scale | None = None,
    ) -> None:
        super().__init__()
        self.early_layer = early_layer
        self.bound = bound
        self.dropout = dropout
        self.learn_scale = learn_scale
        self.initial_scale = initial_scale
        self.image_input = FeatureSpec("pooled")
        # The paper's layer is known once the backbone is.
        layer = -2 if early_layer is None else early_layer
        self.text_input = FeatureSpec("state", layer)

    @override
    def attach(self, backbone: Backbone) -> None:
        self.text_tower = text_tower(backbone)
        if self.early_layer is None:
            self.text_input = FeatureSpec("state", _paper_layer(self.text_tower))
        super().attach(backbone)
        width = backbone.embed_dim
        self.text = _mlp(2 * width)
        self.product = _mlp(width)
        # The head reads two cosines and what both MLPs make of embeddings.
        read = 2 + 2 * OUTPUT
        first = nn.Linear(read, OUTPUT)
        last = nn.Linear(OUTPUT, 1)
        dropout = nn.Dropout(self.dropout)
        self.head = nn.Sequential(first, nn.GELU(), dropout, last)
        for layers in (self.text, self.product, self.head):
            layers.apply(_initialise)
        # A correction of almost nothing at the start.
        nn.init.normal_(last.weight, std=0.001)
        # The logarithm is trained, so that the scale stays positive.
        scale = backbone.logit_scale if self.initial_scale is None else self.initial_scale
        log_scale = torch.tensor(math.log(scale))
        bias = torch.zeros(())
        self.log_scale = nn.Parameter(log_scale, self.learn_scale)
        self.bias = nn.Parameter(bias, self.learn_scale)

    @override
    def prepare_image(self, image: Pooled) -> Pooled:
        return Pooled(normalize(image.values, dim=1))

    @override
    def prepare_text(self, text: Tokens) -> Pooled:
        """Both embeddings of each text, and what $m_1$ makes of them: (n, 2 d + 128)."""
        tower = self.text_tower
        early = text.trimmed()
        blocks_left = -self.text_input.layer - 1
        with evaluation_mode(*tower.blocks):
            # The early state is embedded as if it were the last.
            last = run_last(tower, early, blocks_left)
            early_embedding = normalize(tower.finish(early), dim=1)
            embedding = normalize(tower.finish(last), dim=1)
        layers = torch.cat([early_embedding, embedding], dim=1)
        of_text = self.text(layers)
        return Pooled(torch.cat([layers, of_text], dim=1))

    @override
    def score_pairs(self, image: Pooled, text: Pooled) -> PairScores:
        # The parts that `prepare_text` has put side by side.
        width = image.values.shape[1]
        early, last, of_text = text.values.split([width, width, OUTPUT], dim=1)
        early_product = early * image.values
        product = last * image.values
        # Embeddings are unit vectors, so a sum of products is a cosine.
        early_cosine = early_product.sum(dim=1, keepdim=True)
        cosine = product.sum(dim=1, keepdim=True)
        parts = [early_cosine, cosine, of_text, self.product(product)]
        features = torch.cat(parts, dim=1)
        # Bounded, so that the frozen ranking is corrected and not replaced.
        correction = self.bound * torch.tanh(self.head(features))
        corrected = (cosine + correction).squeeze(1)
        return self.log_scale.exp() * corrected + self.bias

    @override
    def recall_image(self, image: Pooled) -> Vectors:
        """The frozen embeddings: the score without its correction."""
        return self.log_scale.exp() * image.values

    @override
    def recall_text(self, text: Pooled) -> Float[Tensor, "m d"]:
        """The frozen embeddings."""
        width = (text.values.shape[1] - OUTPUT) // 2
        return text.values[:, width : 2 * width]

    @override
    def pair_bytes(self, image: Pooled, text: Pooled, training: bool) -> int:
        width = image.values.shape[1]
        gathered = width + text.values.shape[1] + width
        # Hidden units before and after norm and GELU, features, and units of the last MLP.
        units = 3 * HIDDEN + 2 * OUTPUT + 2 * OUTPUT + 3 * OUTPUT
        numbers = gathered + units
        return numbers * image.values.element_size()


def _paper_layer(tower: TextTower) -> int:
    """Layer 7 of 12 from the end, in proportion; never the last itself."""
    number = round(PAPER_DEPTH * tower.layers)
    return min(number - tower.layers - 1, -2)


def _mlp(width: int) -> nn.Sequential:
    first = nn.Linear(width, HIDDEN)
    last = nn.Linear(HIDDEN, OUTPUT)
    return nn.Sequential(first, nn.LayerNorm(HIDDEN), nn.GELU(), last)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
