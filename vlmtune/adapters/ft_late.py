"""FT-Late: new transformer layers for each modality over frozen token features.

In: frozen tokens of both towers. Out: scores of all pairs. Never: an image token that sees a text.
"""

from pydantic import PositiveInt
from torch import nn
from typing_extensions import override

from vlmtune.adapters.base import Dropout, DualAdapter, Scale, Vectors
from vlmtune.adapters.fusion_styles.layers import LayerFactory, initialise
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.types import FeatureSpec, Tokens


class FTLate(DualAdapter[Tokens, Tokens]):
    r"""Scores $s_{ij} = e^{\tau} \cos(f(I_i), g(Q_j)) + b$ with an encoder for each modality.

    $f(I) = \mathrm{mean}(\mathrm{Enc}_I(W I))$ and $g(Q) = \mathrm{mean}(\mathrm{Enc}_T(Q))$. I are
    the image's tokens (t x v), Q the text's (t x w), both of the layer before the last; W maps v to
    w; $\mathrm{Enc}_I$ and $\mathrm{Enc}_T$ are transformer encoders of 2 layers with 4 heads each.
    No image token sees a text token: this is Cola's baseline for the MM-Adapter, with more
    parameters.

    Choose it as the baseline that shows what fusion adds: it has no fusion, but more parameters.

    - Requirements: enough records to train new layers from random weights.
    - Recommended: `PairBCE`, as in Cola.
    - Relations: `MMAdapter` lets image and text tokens see each other; `LastBlocks` trains old
      layers.
    - Config: `--model.adapter ft_late`.

    Source: Cola (Ray et al. 2023), sections 5.2 and 11.1 ("FT Late"), row "Unimodal" of Table 5.
    On CLIP ViT-B/32 there are 13,005,314 parameters (Table 5: 13M): four layers of 3,152,384, W
    393,728, two final norms 2,048, $\tau$ and b. That count also says that W comes before the
    layers: with image layers in the image's own width there would be 17.7M. What the paper does not
    state is ours: the mean (over all patches, and over words without start and end token), the
    final norms, $\tau$ and b. The new layers start at random, not as copies of CLIP's layers, so an
    untrained FT-Late scores at random.

    Args:
        layers: Layers of each encoder.
        heads: Attention heads.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability in training.
        norm_first: Pre-norm rather than post-norm.
        initial_scale: $e^{\tau}$ at the start.

    Example:
        >>> FTLate().image_input
        FeatureSpec(kind='tokens', layer=-2, frozen=True)
    """

    identity_at_init = False

    def __init__(
        self,
        layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        hidden: PositiveInt = 4,
        dropout: Dropout = 0.1,
        norm_first: bool = False,
        initial_scale: Scale = 10.0,
    ) -> None:
        super().__init__(learn_scale=True, initial_scale=initial_scale)
        self.layers = layers
        self.heads = heads
        self.hidden = hidden
        self.dropout = dropout
        self.norm_first = norm_first
        self.image_input = self.text_input = FeatureSpec("tokens", -2)

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        width = backbone.text_width
        hidden = self.hidden * width
        factory = LayerFactory(width, self.heads, hidden, self.dropout, self.norm_first)
        self.special = backbone.text_special
        self.project = nn.Linear(backbone.image_width, width)
        self.image = factory.encoder(self.layers)
        self.text = factory.encoder(self.layers)
        initialise([self.image, self.text])

    @override
    def embed_image(self, image: Tokens) -> Vectors:
        projected = self.project(image.values)
        patches = self.image.all(projected, image.mask)
        return masked_mean(patches, image.mask)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        words = self.text.all(text.values, text.mask)
        return masked_mean(words, word_mask(text.mask, self.special))
