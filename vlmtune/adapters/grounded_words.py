"""Grounded words: each word reads the image and weighs its content and its location.

In: token states of both towers. Out: a score of each chosen pair, the frozen score included.
Never: a change of the towers.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, normalize
from typing_extensions import override

from vlmtune.adapters.base import JointAdapter
from vlmtune.adapters.fusion_styles.layers import LayerFactory, initialise
from vlmtune.adapters.towers import image_tower, run_last, text_tower, word_embeddings
from vlmtune.backbones.advice import backbones_with
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, PooledTokens, Tokens


class GroundedWords(JointAdapter[Tokens, Tokens, PooledTokens]):
    r"""The frozen score plus the evidence of each word, in content and in location.

    $s(I, T) = \lambda e^{\tau} \cos(v_I, t_T) + b + \frac{1}{2} \sum_{w, h} \Big(
    f_{wh}(T)^\top c_{wh} + g_{wh}(T)^\top p_{wh} \Big)$

    Word w reads the patches with head h: $a_{wh} = \mathrm{softmax}_p(q_{wh}(T)^\top k_{ph}(I) /
    \sqrt{w_h})$. It reads the content $c_{wh} = \sum_p a_{whp} v_{ph}(I) / \sqrt{w_h}$ at the
    location $p_{wh} = \sum_p a_{whp} (x_p, y_p)$, with coordinates from -1 to 1. Queries
    q and weights f, g are linear in the text's tokens after `text_layers` layers of self-attention.
    Coordinates are added to the image's tokens x. Each reads its neighbours by a convolution over
    3 x 3 patches, $x + \mathrm{GELU}(\mathrm{conv}(x))$, as shapes may differ in how their parts
    join. Keys and values are linear in the tokens after `image_layers` layers of self-attention. v
    and t in the first term are the embeddings of the frozen backbone.

    The weights of contents and locations depend on the text alone, so that a relation is a linear
    reading of two locations: "a cube left of a sphere" gives the word of the cube (-1, 0) and that
    of the sphere (1, 0). g is 0 at the start.

    In training the evidence and b are scored alone. With the frozen score most pairs are easy from
    the start, and the others teach words too little to read the image (docs/experiments.md).

    Source: ours. Words that read patches one by one are those of FILIP (Yao et al. 2022, section
    3.1), which takes the best patch of each word; expected coordinates are those of spatial
    soft-argmax (Levine et al. 2016, section 4.2).

    Args:
        heads: H, reading heads of each word.
        text_layers: Self-attention layers over the text's tokens.
        image_layers: Self-attention layers over the image's tokens.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability of these layers in training.
        locations: Whether coordinates are used; without them $g = 0$.
        frozen_weight: $\lambda$, the weight of the frozen score; 0 leaves it out.
        image_layer: Layer of the image's states, counted from the end, -1 excluded.
        text_layer: Layer of the text's states, likewise, or "words" for the embeddings of the
            tokens before the first block: words that the text tower treats alike still differ.
        memory: Bytes that scoring a chunk of pairs may take.

    Example:
        >>> GroundedWords(heads=2).image_input
        FeatureSpec(kind='state', layer=-2, frozen=True)
    """

    broadcasts_image = True
    broadcasts_text = True
    gives_reading = True
    grid: Tensor

    def __init__(
        self,
        heads: int = 4,
        text_layers: int = 2,
        image_layers: int = 1,
        hidden: int = 2,
        dropout: float = 0.0,
        locations: bool = True,
        frozen_weight: float = 1.0,
        image_layer: int = -2,
        text_layer: int | Literal["words"] = "words",
        memory: int = 512 * 2**20,
    ) -> None:
        super().__init__()
        layers = [image_layer] if text_layer == "words" else [image_layer, text_layer]
        if max(layers) > -2 or min(text_layers, image_layers) < 1:
            raise UserError(
                f"expected layers of at most -2 and at least 1 text and image layer, got "
                f"{image_layer=}, {text_layer=}, {text_layers=} and {image_layers=}: correct them"
            )
        if not 0 <= frozen_weight < math.inf:
            raise UserError(f"expected frozen_weight >= 0, got {frozen_weight}: raise it")
        self.heads, self.hidden, self.dropout = heads, hidden, dropout
        self.layers = {"image": image_layers, "text": text_layers}
        self.locations, self.memory = locations, memory
        self.frozen_weight = frozen_weight
        self.image_input = FeatureSpec("state", image_layer)
        # The layer of the words is known once the backbone is.
        self.text_input = FeatureSpec("state", -2 if text_layer == "words" else text_layer)
        self.from_words = text_layer == "words"

    @override
    def attach(self, backbone: Backbone) -> None:
        if self.from_words:
            self.text_input = word_embeddings(backbone)
        super().attach(backbone)
        if backbone.images_differ:
            raise UserError(
                "expected a backbone whose images have one square shape, got "
                f"{type(backbone).__name__}, whose images keep theirs: choose "
                f"{backbones_with('image_tower', one_shape=True)}"
            )
        self.towers: dict[str, Tower] = {"image": image_tower(backbone)}
        self.towers["text"] = text_tower(backbone)
        self.first_patch = image_tower(backbone).special
        width = backbone.text_width
        factory = LayerFactory(width, self.heads, self.hidden * width, self.dropout, True)
        self.project = nn.Linear(backbone.image_width, width)
        self.image, self.text = (factory.encoder(self.layers[side]) for side in ("image", "text"))
        initialise([self.image, self.text])
        self.keys_values = nn.Linear(width, 2 * width)
        self.side = square_side(backbone.image_tokens)
        self.local = nn.Conv2d(width, width, 3, padding=1)
        self.queries = nn.Linear(width, width)
        self.content = nn.Linear(width, width)
        if self.locations:
            self.register_buffer("grid", coordinates(backbone.image_tokens), persistent=False)
            self.position = nn.Linear(4, width)
            self.location = nn.Linear(width, 2 * self.heads)
            nn.init.zeros_(self.location.weight)
            nn.init.zeros_(self.location.bias)
        self.scale = self.frozen_weight * backbone.logit_scale
        self.bias = nn.Parameter(torch.zeros(()))

    @override
    def prepare_image(self, image: Tokens) -> PooledTokens:
        pooled = self._embedding("image", image)
        patches = layer_norm(self.project(image.values[:, self.first_patch :]), [self.width])
        if self.locations:
            patches = patches + self.position(torch.cat([self.grid, self.grid**2], dim=1))
        grid = patches.mT.unflatten(2, (self.side, self.side))
        patches = patches + gelu(self.local(grid)).flatten(2).mT
        mask = image.mask[:, self.first_patch :]
        return PooledTokens(pooled, Tokens(self.keys_values(self.image.all(patches, mask)), mask))

    @override
    def prepare_text(self, text: Tokens) -> PooledTokens:
        text = text.trimmed()
        words = self.text.all(layer_norm(text.values, [self.width]), text.mask)
        parts = [self.queries(words), self.content(words)]
        if self.locations:
            parts.append(self.location(words))
        # Padding has no weight in the sum.
        weighted = torch.cat(parts, dim=2) * text.mask[:, :, None]
        return PooledTokens(self._embedding("text", text), Tokens(weighted, text.mask))

    @override
    def score_pairs(self, image: PooledTokens, text: PooledTokens) -> Float[Tensor, "P"]:
        if len(text) == 1 < len(image):
            evidence = self._evidence_of_images(image.tokens, text.tokens)
        else:
            evidence = self._evidence(image.tokens, text.tokens.values).sum(dim=1)
        if self.training:
            return evidence + self.bias
        return self.scale * (image.pooled * text.pooled).sum(dim=1) + evidence + self.bias

    @override
    def _score_chunk(
        self,
        image: PooledTokens,
        text: PooledTokens,
        rows: Int[Tensor, "P"],
        columns: Int[Tensor, "P"],
    ) -> Float[Tensor, "P"]:
        if not self.training:
            return super()._score_chunk(image, text, rows, columns)
        # The words of all texts of an image stand in one row, so that no image is copied for each.
        used, image_of = rows.unique(return_inverse=True)
        pair, position = text.tokens.mask[columns].nonzero(as_tuple=True)
        by_image = image_of[pair].argsort(stable=True)
        pair, position = pair[by_image], position[by_image]
        counts = image_of[pair].bincount(minlength=len(used))
        longest = int(counts.max())
        gaps = torch.arange(len(used), device=pair.device) * longest - counts.cumsum(0) + counts
        slot = torch.arange(len(pair), device=pair.device) + gaps[image_of[pair]]
        word = torch.zeros(len(used) * longest, dtype=torch.int64, device=pair.device)
        word[slot] = columns[pair] * text.tokens.mask.shape[1] + position
        words = text.tokens.values.flatten(0, 1).index_select(0, word)
        images = image.tokens.map(lambda tensor: tensor.index_select(0, used))
        evidence = self._evidence(images, words.unflatten(0, (len(used), longest))).flatten()[slot]
        return evidence.new_zeros(len(rows)).index_add(0, pair, evidence) + self.bias

    def _evidence(
        self, image: Tokens, words: Float[Tensor, "n words x"]
    ) -> Float[Tensor, "n words"]:
        """The evidence of each word in its image."""
        # Not by slices, whose gradients are padded to the whole and added.
        keys, values = (self._by_head(x) for x in image.values.chunk(2, dim=2))
        sizes = [self.width, self.width, words.shape[2] - 2 * self.width]
        queries, content, location = (self._by_head(x) for x in words.split(sizes, dim=2))
        weight = content @ values.mT / math.sqrt(self.width / self.heads)
        if self.locations:
            weight = weight + location @ self.grid.T.to(keys.dtype)
        return (self._read(keys, queries, image) * weight).sum(dim=(1, 3)) / 2

    def _evidence_of_images(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """The evidence of one text in many images, by one matrix product.

        The heads of the text stand in a block-diagonal matrix, so that no image is copied by head.
        """
        width = self.width
        queries, content = (
            self._by_head(text.values[:, :, start : start + width])[0] for start in (0, width)
        )
        blocks = torch.block_diag(*queries.mT, *content.mT) / math.sqrt(width / self.heads)
        products, weight = (image.values @ blocks).chunk(2, dim=2)
        if self.locations:
            location = self._by_head(text.values[:, :, 2 * width :])[0].flatten(0, 1)
            weight = weight + self.grid.to(weight.dtype) @ location.T
        read = products.masked_fill(~image.mask[:, :, None], -torch.inf).softmax(dim=1)
        return (read * weight).sum(dim=(1, 2)) / 2

    @override
    def recall_image(self, image: PooledTokens) -> Float[Tensor, "n d"]:
        r"""The image's part of the score to first order in the queries.

        With $u_{ph} = (v_{ph} / \sqrt{w_h}, x_p, y_p)$ and $e_{wh} = (f_{wh}, g_{wh})$,
        $\mathrm{softmax}_p(z) \approx (1 + z_p - \bar z) / P$ gives
        $s(I, T) \approx \lambda e^{\tau} \cos(v_I, t_T) + b + \frac{1}{2} \sum_h \Big(
        \bar u_h^\top \sum_w e_{wh} + \big\langle \mathrm{cov}_p(k_{ph}, u_{ph}) / \sqrt{w_h},
        \sum_w q_{wh} e_{wh}^\top \big\rangle \Big)$,
        a sum of products of numbers of the image and numbers of the text. Without b, the vectors
        of both have d = D + H y + H w_h y numbers, with y = w_h + 2 where locations are used.
        """
        tokens = image.tokens
        scale = math.sqrt(self.width / self.heads)
        keys, values = (x.unflatten(2, (self.heads, -1)) for x in tokens.values.chunk(2, dim=2))
        values = values / scale
        if self.locations:
            grid = self.grid.to(values.dtype)[None, :, None]
            values = torch.cat([values, grid.expand(*values.shape[:3], -1)], dim=3)
        weight = (tokens.mask / tokens.lengths[:, None])[:, :, None, None]
        mean = (weight * values).sum(dim=1)
        centred = weight * (keys - (weight * keys).sum(dim=1, keepdim=True))
        spread = torch.einsum("nphi,nphj->nhij", centred, values) / scale
        return torch.cat([self.scale * image.pooled, mean.flatten(1), spread.flatten(1)], dim=1)

    @override
    def recall_text(self, text: PooledTokens) -> Float[Tensor, "m d"]:
        r"""The text's part, see `recall_image`; padding has no weight."""
        words = text.tokens.values
        sizes = [self.width, self.width, words.shape[2] - 2 * self.width]
        queries, content, location = (
            x.unflatten(2, (self.heads, -1)) for x in words.split(sizes, dim=2)
        )
        weight = torch.cat([content, location], dim=3) / 2
        products = torch.einsum("mwhi,mwhj->mhij", queries, weight)
        return torch.cat([text.pooled, weight.sum(dim=1).flatten(1), products.flatten(1)], dim=1)

    @override
    def reading(self, image: PooledTokens, text: PooledTokens) -> Float[Tensor, "P words patches"]:
        r"""The mean over the heads of $a_{whp}$."""
        keys, queries = (x.tokens.values[:, :, : self.width] for x in (image, text))
        return self._read(self._by_head(keys), self._by_head(queries), image.tokens).mean(dim=1)

    def _read(
        self,
        keys: Float[Tensor, "#P heads patches y"],
        queries: Float[Tensor, "#P heads words y"],
        image: Tokens,
    ) -> Float[Tensor, "#P heads words patches"]:
        r"""$a_{whp}$, how much word w reads patch p with head h."""
        products = queries @ keys.mT / math.sqrt(self.width / self.heads)
        return products.masked_fill(~image.mask[:, None, None], -torch.inf).softmax(dim=3)

    @override
    def pair_bytes(self, image: PooledTokens, text: PooledTokens, training: bool) -> int:
        patches, words = image.tokens.mask.shape[1], text.tokens.mask.shape[1]
        gathered = 2 * self.width * patches + (2 * self.width + 2 * self.heads) * words
        copies = 4 if training else 3
        return (gathered + copies * self.heads * patches * words) * image.pooled.element_size()

    @property
    def width(self) -> int:
        """W of the tokens."""
        return self.queries.in_features

    def _embedding(self, side: str, state: Tokens) -> Float[Tensor, "n d"]:
        """The normalised embeddings of the frozen backbone; no numbers where they are not used."""
        if self.training:
            return state.values.new_zeros(len(state), 0)
        tower = self.towers[side]
        spec = self.image_input if side == "image" else self.text_input
        with torch.no_grad(), evaluation_mode(*tower.blocks):
            last = run_last(tower, state.trimmed(), -spec.layer - 1)
            return normalize(tower.finish(last), dim=-1)

    def _by_head(self, values: Float[Tensor, "P t x"]) -> Float[Tensor, "P heads t y"]:
        return values.unflatten(2, (self.heads, -1)).transpose(1, 2)


def coordinates(patches: int) -> Float[Tensor, "t 2"]:
    """Coordinates (x, y) from -1 to 1 of the patches of a square image, row by row from the top.

    Example:
        >>> coordinates(4).tolist()
        [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    side = square_side(patches)
    steps = torch.linspace(-1, 1, side)
    return torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=2).flatten(0, 1)


def square_side(patches: int) -> int:
    """The number of patches along a side of a square image.

    Example:
        >>> square_side(49)
        7
    """
    side = math.isqrt(patches)
    if side**2 != patches:
        raise UserError(
            f"expected the patches of a square image, got {patches}: choose another backbone"
        )
    return side
