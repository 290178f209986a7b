"""Product pooling: a vector for each image and text, as a sum of products of readings of tokens.

In: token states of both towers. Out: embeddings, the frozen ones included.
Never: a pair of image and text before their vectors meet.
"""

import torch
from jaxtyping import Float
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize
from typing_extensions import override

from vlmtune.adapters.base import Dropout, DualAdapter, Scale, Vectors
from vlmtune.adapters.fusion_styles.layers import LayerFactory, initialise
from vlmtune.adapters.grounded_words import (
    EarlyLayer,
    coordinates,
    square_side,
    with_neighbours,
)
from vlmtune.adapters.towers import run_last, text_tower, tower_of_one_shape, word_embeddings
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import FeatureSpec, Tokens

Products = Float[Tensor, "n k"]


class ProductPooling(DualAdapter[Tokens, Tokens]):
    r"""Scores by one vector an image and a text, which hold what belongs to what.

    $s_{ij} = \lambda e^{\tau_0} \cos(v_i, t_j) + e^{\tau} \cos(f(I_i), g(T_j)) + b$ with
    $f(I) = \sum_p \sigma(\gamma_p) \, (A x_p) \odot (B x_p)$ over patches p and
    $g(T) = \sum_w \sigma(\delta_w) \, (C y_w) \odot (D y_w)$ over words w

    A sum of vectors forgets which colour went with which shape; a sum of products remembers. Where
    A reads the colour of a patch and B its shape, $(A x) \odot (B x)$ is an outer product in fewer
    numbers. Training has to show most compositions before readings of new ones are right
    (docs/results/index.md). f and g have `width` numbers.

    x are states of the image's patches, projected, with their coordinates. Each reads its
    neighbours, x + GELU(conv(x)), and then all patches in `image_layers` layers of self-attention.
    y are embeddings of the words after `text_layers` such layers. Layer norms without parameters
    come before these layers and after them. The gates $\gamma$ and $\delta$ are linear. v and t
    are the embeddings of the frozen backbone.

    In training the second term is alone, as in `GroundedWords`. Afterwards an embedding is
    $(\sqrt{\lambda e^{\tau_0}} \, v, \sqrt{e^{\tau}} \, f / |f|)$, so that its cosine has the order
    of the scores: a vector index needs no more.

    Choose it where images are found by their vectors, and a caption says what belongs to what.

    - Requirements: captions that name several objects with their attributes, and hard negatives;
      towers that run block by block, images of one shape.
    - Recommended: `InfoNCE`, a learning rate of 0.002 and batches of 128.
    - Relations: `GroundedVectors` reads relations too, and recombines from fewer compositions; it
      is made of `GroundedWords`. `FTLate` takes means of tokens in the place of products.
    - Config: `--model.adapter product_pooling`.

    Source: ours. Binding by a product of role and filler is Smolensky's (1990), the product of two
    projections in the place of an outer product is that of Kim et al. (2017, section 3).

    Args:
        width: Numbers of the product.
        heads: Attention heads of the layers.
        text_layers: Self-attention layers over the text's words.
        image_layers: Self-attention layers over the image's patches.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability of these layers in training.
        products: Whether readings are multiplied; without it $B x$ and $D y$ are left out, as a
            control.
        frozen_weight: $\lambda$, the weight of the frozen score; 0 leaves it out.
        image_layer: Layer of the image's states, counted from the end, -1 excluded.
        initial_scale: $e^{\tau}$ at the start.

    Example:
        >>> ProductPooling().image_input
        FeatureSpec(kind='state', layer=-2, frozen=True)
    """

    identity_at_init = False
    grid: Tensor

    def __init__(
        self,
        width: PositiveInt = 512,
        heads: PositiveInt = 4,
        text_layers: PositiveInt = 2,
        image_layers: PositiveInt = 1,
        hidden: PositiveInt = 2,
        dropout: Dropout = 0.0,
        products: bool = True,
        frozen_weight: NonNegativeFloat = 1.0,
        image_layer: EarlyLayer = -2,
        initial_scale: Scale = 10.0,
    ) -> None:
        super().__init__(learn_scale=True, initial_scale=initial_scale)
        self.width = width
        self.heads = heads
        self.layers = {"image": image_layers, "text": text_layers}
        self.hidden = hidden
        self.dropout = dropout
        self.products = products
        self.frozen_weight = frozen_weight
        self.image_input = FeatureSpec("state", image_layer)
        # The layer of word embeddings is known once the backbone is.
        self.text_input = FeatureSpec("state", -2)

    @override
    def attach(self, backbone: Backbone) -> None:
        self.text_input = word_embeddings(backbone)
        super().attach(backbone)
        self.image_tower = tower_of_one_shape(backbone)
        self.text_tower = text_tower(backbone)
        self.side = square_side(backbone.image_tokens)
        # Everything is computed in the text's width, by pre-norm layers.
        width = backbone.text_width
        hidden = self.hidden * width
        factory = LayerFactory(width, self.heads, hidden, self.dropout, norm_first=True)
        self.project = nn.Linear(backbone.image_width, width)
        self.image = factory.encoder(self.layers["image"])
        self.text = factory.encoder(self.layers["text"])
        initialise([self.image, self.text])
        self.local = nn.Conv2d(width, width, 3, padding=1)
        grid = coordinates(backbone.image_tokens)
        self.register_buffer("grid", grid, persistent=False)
        self.position = nn.Linear(4, width)  # of x, y and their squares
        # Two readings and a gate of each patch, and of each word.
        self.of_patch = nn.Linear(width, 2 * self.width + 1)
        self.of_word = nn.Linear(width, 2 * self.width + 1)
        self.frozen_scale = self.frozen_weight * backbone.logit_scale

    @property
    @override
    def scale(self) -> Float[Tensor, ""]:
        learned = self.log_scale.exp()
        return learned if self.training else learned + self.frozen_scale

    @override
    def embed_image(self, image: Tokens) -> Vectors:
        read = image.without_first(self.image_tower.special)
        patches = self._normed(self.project(read.values))
        location = torch.cat([self.grid, self.grid**2], dim=1)
        patches = patches + self.position(location)
        # Each patch reads its neighbours, before all patches read each other.
        patches = with_neighbours(patches, self.local, self.side)
        patches = self.image.all(patches, read.mask)
        parts = self.of_patch(self._normed(patches))
        product = self._pooled(read.with_values(parts))
        return self._with_frozen(product, self.image_tower, image, self.image_input.layer)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        text = text.trimmed()
        words = self.text.all(self._normed(text.values), text.mask)
        parts = self.of_word(self._normed(words))
        product = self._pooled(text.with_values(parts))
        return self._with_frozen(product, self.text_tower, text, self.text_input.layer)

    def _normed(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        return layer_norm(tokens, tokens.shape[2:])

    def _pooled(self, parts: Tokens) -> Products:
        """The sum of gated products over the tokens."""
        first, second, gate = parts.values.split([self.width, self.width, 1], dim=2)
        weight = gate.sigmoid() * parts.mask[:, :, None]
        if self.products:
            first = first * second
        return (weight * first).sum(dim=1)

    def _with_frozen(self, product: Products, tower: Tower, state: Tokens, layer: int) -> Vectors:
        """The embedding, before which the frozen one stands outside training."""
        if self.training or not self.frozen_weight:
            return product
        with evaluation_mode(*tower.blocks):
            last = run_last(tower, state, -layer - 1)
            frozen = normalize(tower.finish(last), dim=1)
        learned = self.log_scale.exp().sqrt() * normalize(product, dim=1)
        return torch.cat([self.frozen_scale**0.5 * frozen, learned], dim=1)
