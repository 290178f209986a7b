"""Grounded words: each word reads the image and weighs its content and its location.

In: token states of both towers. Out: a score of each chosen pair, the frozen score included.
Never: a change of the towers.
"""

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import layer_norm, logsigmoid, normalize, pad
from typing_extensions import override

from vlmtune.adapters.base import Dropout, EarlyLayer, JointAdapter, Numbers, PairScores, Vectors
from vlmtune.adapters.fusion_styles.attention import masked_softmax, split_heads
from vlmtune.adapters.fusion_styles.layers import LayerFactory, initialise
from vlmtune.adapters.negations import Negations
from vlmtune.adapters.patch_grid import coordinates, with_neighbours
from vlmtune.adapters.towers import (
    embeds_patches,
    fills_texts,
    run_last,
    text_tower,
    tower_of_one_shape,
)
from vlmtune.adapters.unread_words import UnreadWords
from vlmtune.adapters.whitened_words import WhitenedWords
from vlmtune.adapters.words import with_preceding
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, PooledTokens, Tokens, send

_PRECEDING = 3  # words that each word reads before all words read each other
ByHead = Float[Tensor, "n heads words patches"]
ByWord = Float[Tensor, "P words"]


class GroundedWords(JointAdapter[Tokens, Tokens, PooledTokens]):
    r"""The frozen score plus the log-probability that the words find what they say.

    $s(I, T) = \lambda e^{\tau} \cos(v_I, t_T) + u(I, T) + (1 - \alpha) \log \sigma(e) + \alpha e$,
    with the evidence $e(I, T) = b + \frac{1}{2} \sum_{w, h} \Big( f_{wh}(T)^\top c_{wh} +
    g_{wh}(T)^\top p_{wh} \Big)$

    Word w, start and end tokens included, reads the patches with head h: $a_{wh} =
    \mathrm{softmax}_p(q_{wh}(T)^\top k_{ph}(I) / \sqrt{d_h})$ with the width $d_h$ of a head. It
    reads the content $c_{wh} = \sum_p a_{whp} v_{ph}(I) / \sqrt{d_h}$ at the location $p_{wh} =
    \sum_p a_{whp} (x_p, y_p)$, with coordinates from -1 to 1. Queries q and weights f, g are linear
    in the words after `text_layers` layers of self-attention, keys k and values v in the patches
    after `image_layers` (pre-norm, ReLU, a norm at the end). $v_I$ and $t_T$ are the embeddings of
    the frozen backbone, $e^{\tau}$ is its factor on cosines. Before the layers:

    - Token embeddings with their positions, and states of patches mapped to the same width, get a
      layer norm without parameters. A linear map of $(x_p, y_p, x_p^2, y_p^2)$ is added to patches.
    - Each word reads the three words before it by a convolution, $x + \mathrm{GELU}(
      \mathrm{conv}(x))$: they tell what an object does in a sentence, in whatever order, as in
      "left of a cube" and "there is a cube".
    - Each patch likewise reads its neighbours by a convolution over 3 x 3 patches, as shapes may
      differ in how their parts join.

    A word w that no training text has is read by what the frozen model knows of it
    (`UnreadWords`), unless `hidden_words` is 0. It says
    $u_w = (2 |t_w - t_0|)^3 \frac{\mu e^\tau}{H} \sum_h \sum_p a_{whp} \, (t_w - t_0)^\top
    (z_p - m)$. The first factor is 0.8 to 1.7 for colours of the small CLIP and at most 0.2 for
    sizes, of which patches say little. $u = \sum_w u_w$ is added to the evidence, and again to the
    score, since the logarithm hides it where the evidence of the other words is large. The evidence
    is less certain with such words, so e is halved for each. Training leaves out the factor, the
    second sum and the halving. A `meaning_weight` of 0 leaves out all of this.

    If a text has a negation that training texts had, only its evidence counts: its t is that of an
    empty text (`Negations`), and its unread words add nothing and halve nothing, unless
    `hidden_words` is 0.

    The weights of contents and locations depend on the text alone, so a relation is a linear
    function of two locations: "a cube left of a sphere" gives the word "cube" the weight (-1, 0)
    and the word "sphere" the weight (1, 0). g is 0 at the start.

    In training the score is e alone, the log-odds of the sentence. With the frozen score most pairs
    are easy from the start, and the remaining pairs teach words too little to read the image ("What
    failed" in docs/experiments.md). After training $\log \sigma(e)$ is close to 0 for all sentences
    that the evidence finds true. The frozen score ranks these, so what it knows is kept.

    Choose it for attributes, counts and relations in space, and for search in two stages.

    - Requirements: captions with hard negatives; towers that run block by block, images of one
      shape.
    - Recommended: `PairBCE`; `frozen_weight: 0`, `leak: 0` for the log-probability of a sentence of
      words that training had.
    - Relations: unlike `MMAdapter` it keeps the frozen score, and vectors approximate its score.
    - Config: `--model.adapter grounded_words`.

    Source: ours. Words that read patches one by one are those of FILIP (Yao et al. 2022, section
    3.1), which takes the best patch of each word; expected coordinates are those of spatial
    soft-argmax (Levine et al. 2016, section 4.2). Allen-Zhu 2025 (Physics of Language Models, part
    4.1) has convolutions over preceding words in language models.

    Args:
        heads: H, reading heads of each word.
        text_layers: Self-attention layers over the text's tokens.
        image_layers: Self-attention layers over the image's tokens.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability of these layers in training.
        locations: Whether coordinates are used; without them $g = 0$.
        frozen_weight: $\lambda$, the weight of the frozen score; 0 leaves it out.
        leak: $\alpha$, from 0 to 1. A larger leak binds better and keeps less of the frozen scores;
            with 1 the evidence itself is added.
        image_layer: Layer of the image's states, counted from the end, -1 excluded.
        text_layer: Layer of the text's states, likewise, or "words" for the embeddings of the
            tokens before the first block: words that the text tower treats alike still differ.
        whiten: Whether these embeddings are whitened over the vocabulary (`WhitenedWords`), so that
            words that the frozen model embeds alike differ as much as others. Padding that a tower
            fills texts with stays as it is.
        hidden_words: How often training hides a word, so that words that training lacks can be read
            and do not disturb the reading of other words. The probability is multiplied by how much
            the word means to the frozen model (`UnreadWords`). 0 turns this off.
        meaning_weight: $\mu$, the weight of what the frozen model knows of such words. A smaller
            weight binds them less and keeps more of the frozen scores. With 0 they are not
            compared.
        memory: Bytes that scoring a chunk of pairs may take, see `JointAdapter`.

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
        heads: PositiveInt = 4,
        text_layers: PositiveInt = 2,
        image_layers: PositiveInt = 1,
        hidden: PositiveInt = 2,
        dropout: Dropout = 0.0,
        locations: bool = True,
        frozen_weight: NonNegativeFloat = 1.0,
        leak: Annotated[float, Ge(0), Le(1)] = 0.1,
        image_layer: EarlyLayer = -2,
        text_layer: EarlyLayer | Literal["words"] = "words",
        whiten: bool = True,
        hidden_words: Dropout = 0.2,
        meaning_weight: NonNegativeFloat = 2 / 3,
        memory: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.hidden = hidden
        self.dropout = dropout
        self.layers = {"image": image_layers, "text": text_layers}
        self.locations = locations
        self.memory = memory
        self.frozen_weight = frozen_weight
        self.leak = leak
        self.image_input = FeatureSpec("state", image_layer)
        if text_layer == "words":
            self.text_input = FeatureSpec("words")
        else:
            self.text_input = FeatureSpec("state", text_layer)
        self.from_words = text_layer == "words"
        self.whiten = whiten and self.from_words
        self.hidden_words = hidden_words
        self.meaning_weight = meaning_weight
        # Deeper states of a word depend on the words around it, so no word can be hidden.
        if hidden_words and not self.from_words:
            raise UserError(
                f'expected text_layer "words" to hide words, got {text_layer}: leave it out, '
                "or set hidden_words to 0"
            )

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        self.image_tower = tower_of_one_shape(backbone)
        self.text_tower = text_tower(backbone)
        self.text_layer = self.text_input.layer
        if self.from_words:
            self.text_layer = -1 - self.text_tower.layers  # before the first block
        elif fills_texts(self.text_tower):
            # A state of a tower that reads padding no longer tells which tokens are words.
            self.text_input = FeatureSpec("words")
        # Everything is computed in the text's width, by pre-norm layers.
        width = backbone.text_width
        hidden = self.hidden * width
        factory = LayerFactory(width, self.heads, hidden, self.dropout, norm_first=True)
        self.project = nn.Linear(backbone.image_width, width)
        self.image = factory.encoder(self.layers["image"])
        self.text = factory.encoder(self.layers["text"])
        initialise([self.image, self.text])
        # A patch gives a key and a content; a word a query, and weights of content and location.
        self.keys_values = nn.Linear(width, 2 * width)
        self.rows_columns = backbone.image_grid
        self.local = nn.Conv2d(width, width, 3, padding=1)
        self.preceding = nn.Conv1d(width, width, 1 + _PRECEDING)
        self.queries = nn.Linear(width, width)
        self.content = nn.Linear(width, width)
        if self.locations:
            grid = coordinates(*self.rows_columns)
            self.register_buffer("grid", grid, persistent=False)
            self.position = nn.Linear(4, width)  # of x, y and their squares
            self.location = nn.Linear(width, 2 * self.heads)
            # Words first learn what to look for, then where.
            nn.init.zeros_(self.location.weight)
            nn.init.zeros_(self.location.bias)
        self.scale = self.frozen_weight * backbone.logit_scale
        self.bias = nn.Parameter(torch.zeros(()))
        # Numbers of a patch: key, content and embedding in the shared space. Numbers of a word:
        # query, weights of content and location, and the meaning that patches are compared with.
        compared = 0
        if self.hidden_words:
            self.unread = UnreadWords(backbone, self.hidden_words, self.meaning_weight)
            # Found by their ids, which hidden words need too.
            self.negations = Negations(backbone)
        if self.whiten:
            self.whitened = WhitenedWords(backbone)
        self.compares = bool(self.hidden_words and self.meaning_weight)
        # Patches after the last block, or under a class token their values in it.
        self.compares_last = self.compares and embeds_patches(self.image_tower)
        self.compares_values = self.compares and not self.compares_last
        if self.compares:
            compared = backbone.embed_dim
        location = 2 * self.heads * self.locations
        self.patch_sizes = [width, width, compared]
        self.word_sizes = [width, width, location, compared]

    @override
    def prepare_image(self, image: Tokens) -> PooledTokens:
        # The class token stands for no part of the image, so no word reads it.
        read = image.without_first(self.image_tower.special)
        # The last norm of a tower comes after these states, which are large without it.
        patches = self.project(read.values)
        patches = layer_norm(patches, [self.width])
        if self.locations:
            location = torch.cat([self.grid, self.grid**2], dim=1)
            patches = patches + self.position(location)
        # Each patch reads its neighbours, before all patches read each other.
        patches = with_neighbours(patches, self.local, self.rows_columns)
        patches = self.image.all(patches, read.mask)
        parts = [self.keys_values(patches)]
        # Training without meanings needs nothing of the last blocks.
        pooled = image.values.new_zeros(len(image), 0)
        if self.compares_values:
            parts.append(self.unread.values(image, self.image_input.layer))
        if self.compares_last or not self.training:
            last = self._last(self.image_tower, image, self.image_input.layer)
            if self.compares_last:
                parts.append(self.unread.patches(last))
            if not self.training:
                pooled = self._embedding(self.image_tower, last)
        values = torch.cat(parts, dim=2)
        return PooledTokens(pooled, read.with_values(values))

    @override
    def prepare_text(self, text: Tokens) -> PooledTokens:
        text = text.trimmed()
        # The frozen score counts outside training alone, and it reads all words.
        pooled = text.values.new_zeros(len(text), 0)
        if not self.training:
            last = self._last(self.text_tower, self._state(text), self.text_layer)
            pooled = self._embedding(self.text_tower, last)
        counts = text.mask
        meanings = text.values.new_zeros(*counts.shape, 0)
        if self.hidden_words:
            hidden, meanings_of_hidden = self.unread(text)
            if self.compares:
                meanings = meanings_of_hidden
            if not self.training:
                # The frozen model reads "no cube" as "cube".
                known = self.unread.known(text)
                words = self.unread.words(text)
                negated = self.negations(text, known, words)
                without_words = self.negations.empty.to(pooled.dtype)
                pooled = torch.where(negated[:, None], without_words, pooled)
                meanings = meanings.masked_fill(negated[:, None, None], 0.0)
            text = self.unread.hide(text, hidden)
            # A hidden word has no other weight than its meaning.
            counts = counts & ~hidden
        if self.whiten:
            text = self.whitened(text)
        state = self._state(text)
        words = layer_norm(state.values, [self.width])
        # The words just before tell what an object does in a sentence: "left of a", "there is a".
        words = with_preceding(words, self.preceding)
        words = self.text.all(words, state.mask)
        queries = self.queries(words)
        weights = [self.content(words)]
        if self.locations:
            weights.append(self.location(words))
        # Some towers fill texts with padding, which has no weight.
        padding = state.token_count - text.token_count
        counts = pad(counts, (0, padding))
        meanings = pad(meanings, (0, 0, 0, padding))
        weighted = torch.cat(weights, dim=2) * counts[:, :, None]
        values = torch.cat([queries, weighted, meanings], dim=2)
        return PooledTokens(pooled, state.with_values(values))

    @override
    def score_pairs(self, image: PooledTokens, text: PooledTokens) -> PairScores:
        if self.training:
            by_word = self._evidence(image.tokens, text.tokens.values)
            return by_word.sum(dim=1) + self.bias
        if len(text) == 1 < len(image):
            evidence, by_word = self._read_images(image.tokens, text.tokens)
        else:
            evidence, by_word = self._read_pairs(image.tokens, text.tokens.values)
        evidence = evidence + self.bias
        frozen = self.scale * (image.pooled * text.pooled).sum(dim=1)
        if by_word is not None:
            *_, meanings = text.tokens.values.split(self.word_sizes, dim=2)
            evidence, beside = self.unread.counted(evidence, by_word, meanings)
            frozen = frozen + beside
        return frozen + (1 - self.leak) * logsigmoid(evidence) + self.leak * evidence

    @override
    def _score_chunk(
        self, image: PooledTokens, text: PooledTokens, rows: Numbers, columns: Numbers
    ) -> PairScores:
        if not self.training:
            return super()._score_chunk(image, text, rows, columns)
        # The words of all texts of an image stand in one row, so that no image is copied for each.
        # First every word: its pair, its position in its text, and the number of its image.
        used, image_of = rows.unique(return_inverse=True)
        words_of_pair = text.tokens.cpu_mask[columns]
        pair, position = words_of_pair.nonzero(as_tuple=True)
        by_image = image_of[pair].argsort(stable=True)
        pair = pair[by_image]
        position = position[by_image]
        row = image_of[pair]
        # Then its slot. All rows are as long as the longest, so a row starts after the gaps at the
        # ends of the rows before it.
        counts = row.bincount(minlength=len(used))
        longest = int(counts.max())
        before = counts.cumsum(0) - counts
        starts = torch.arange(len(used)) * longest
        gaps = starts - before
        slot = torch.arange(len(pair)) + gaps[row]
        # Each slot takes its word from the words of all texts, one text after the other; an empty
        # slot takes the first word, and what is read there is not added below.
        source = torch.zeros(len(used) * longest, dtype=torch.int64)
        source[slot] = columns[pair] * text.token_count + position
        device = image.device
        all_words = text.tokens.values.flatten(0, 1)
        words = all_words.index_select(0, send(source, device))
        words = words.unflatten(0, (len(used), longest))
        by_slot = self._evidence(image.tokens.take(used), words).flatten()
        # The evidence of a pair is the sum over its words.
        evidence = by_slot[send(slot, device)]
        zeros = evidence.new_zeros(len(rows))
        sums = zeros.index_add(0, send(pair, device), evidence)
        return sums + self.bias

    def _evidence(
        self, image: Tokens, words: Float[Tensor, "n words x"]
    ) -> Float[Tensor, "n words"]:
        """The evidence of each word in its image, in training."""
        read, weight, compared = self._parts(image, words)
        if compared is not None:
            # The mean over the heads, once the sum below is halved.
            weight = weight + 2 / self.heads * compared[:, None]
        # A word sums over the patches what they count for, by how much it reads each.
        return (read * weight).sum(dim=(1, 3)) / 2

    def _read_pairs(
        self, image: Tokens, words: Float[Tensor, "P words x"]
    ) -> tuple[PairScores, ByWord | None]:
        """The evidence by words that training had, and what each unread word finds."""
        read, weight, compared = self._parts(image, words)
        evidence = (read * weight).sum(dim=(1, 2, 3)) / 2
        if compared is None:
            return evidence, None
        by_patch = read.sum(dim=1) * compared
        return evidence, by_patch.sum(dim=2) / self.heads

    def _parts(
        self, image: Tokens, words: Float[Tensor, "n words x"]
    ) -> tuple[ByHead, ByHead, Float[Tensor, "n words patches"] | None]:
        """What each word reads, what its patches count for, and how they compare to its meaning."""
        # Not by slices, whose gradients are padded to the whole and added.
        keys, values, patches = image.values.split(self.patch_sizes, dim=2)
        queries, content, location, meanings = words.split(self.word_sizes, dim=2)
        keys = split_heads(keys, self.heads)
        values = split_heads(values, self.heads)
        # What each patch counts for, if the word reads it: by its content and its location.
        weight = split_heads(content, self.heads) @ values.mT / self._root
        if self.locations:
            grid = self.grid.T.to(keys.dtype)
            weight = weight + split_heads(location, self.heads) @ grid
        read = self._read(keys, split_heads(queries, self.heads), image)
        compared = meanings @ patches.mT if self.compares else None
        return read, weight, compared

    def _read_images(self, image: Tokens, text: Tokens) -> tuple[PairScores, ByWord | None]:
        """The same of one text in many images, by one matrix product.

        The heads of the text stand in a block-diagonal matrix, so that no image is copied by head.
        """
        queries, content, location, meanings = text.values.split(self.word_sizes, dim=2)
        queries = split_heads(queries, self.heads)[0]
        content = split_heads(content, self.heads)[0]
        # (2 width, 2 heads x words): each head reads its own part of keys and values.
        blocks = torch.block_diag(*queries.mT, *content.mT) / self._root
        keys_values = image.values[:, :, : len(blocks)]
        # (P, patches, heads x words) each: what is read, and what the content there counts for.
        both = keys_values @ blocks
        products, weight = both.chunk(2, dim=2)
        if self.locations:
            location = split_heads(location, self.heads)[0].flatten(0, 1)
            grid = self.grid.to(weight.dtype)
            weight = weight + grid @ location.T
        read = masked_softmax(products, image.mask[:, :, None], dim=1)
        evidence = (read * weight).sum(dim=(1, 2)) / 2
        if not self.compares:
            return evidence, None
        patches = image.values[:, :, len(blocks) :]
        compared = patches @ meanings[0].T
        read = read.unflatten(2, (self.heads, -1)).sum(dim=2)
        return evidence, (read * compared).sum(dim=1) / self.heads

    @override
    def recall_image(self, image: PooledTokens) -> Vectors:
        r"""The image's part of the frozen score and the evidence, to first order in the queries.

        With $u_{ph} = (v_{ph} / \sqrt{d_h}, x_p, y_p)$ and $e_{wh} = (f_{wh}, g_{wh})$, and P
        patches, $\mathrm{softmax}_p(z) \approx (1 + z_p - \bar z) / P$ gives
        $e(I, T) \approx b + \frac{1}{2} \sum_h \Big(
        \bar u_h^\top \sum_w e_{wh} + \big\langle \mathrm{cov}_p(k_{ph}, u_{ph}) / \sqrt{d_h},
        \sum_w q_{wh} e_{wh}^\top \big\rangle \Big)$,
        a sum of products of numbers of the image and numbers of the text. With the D numbers of the
        frozen score and without b, both vectors have $D + H n (1 + d_h)$ numbers, with
        $n = d_h + 2$ where locations are used and $n = d_h$ without.
        Words that training never read count in the frozen score alone.
        """
        # k and u of the docstring: (n, patches, heads, width of a head), u with the coordinates.
        keys, values, _ = image.tokens.values.split(self.patch_sizes, dim=2)
        keys = keys.unflatten(2, (self.heads, -1))
        values = values.unflatten(2, (self.heads, -1))
        values = values / self._root
        if self.locations:
            # Every image and every head has the same coordinates.
            grid = self.grid.to(values.dtype)[None, :, None]
            grid = grid.expand(*values.shape[:3], -1)
            values = torch.cat([values, grid], dim=3)
        # Means over the patches, padding left out.
        real = image.tokens.mask
        weight = real / real.sum(dim=1, keepdim=True)
        weight = weight[:, :, None, None]
        mean_value = (weight * values).sum(dim=1)
        # The covariance needs the mean of one factor alone taken off.
        mean_key = (weight * keys).sum(dim=1, keepdim=True)
        centred = keys - mean_key
        covariance = torch.einsum("nphi,nphj->nhij", weight * centred, values)
        frozen = self.scale * image.pooled
        parts = [frozen, mean_value.flatten(1), covariance.flatten(1) / self._root]
        return torch.cat(parts, dim=1)

    @override
    def recall_text(self, text: PooledTokens) -> Float[Tensor, "m d"]:
        r"""The text's part, see `recall_image`; padding has no weight."""
        queries, content, location, _ = text.tokens.values.split(self.word_sizes, dim=2)
        queries = queries.unflatten(2, (self.heads, -1))
        content = content.unflatten(2, (self.heads, -1))
        location = location.unflatten(2, (self.heads, -1))
        # e of `recall_image`, halved as the score halves its sum.
        weight = torch.cat([content, location], dim=3)
        weight = weight / 2
        # The order of the parts is that of the image's: frozen score, means, covariances.
        sums = weight.sum(dim=1)
        products = torch.einsum("mwhi,mwhj->mhij", queries, weight)
        parts = [text.pooled, sums.flatten(1), products.flatten(1)]
        return torch.cat(parts, dim=1)

    @override
    def reading(self, image: PooledTokens, text: PooledTokens) -> Float[Tensor, "P words patches"]:
        r"""The mean over the heads of $a_{whp}$."""
        keys, *_ = image.tokens.values.split(self.patch_sizes, dim=2)
        queries, *_ = text.tokens.values.split(self.word_sizes, dim=2)
        keys = split_heads(keys, self.heads)
        queries = split_heads(queries, self.heads)
        by_head = self._read(keys, queries, image.tokens)
        return by_head.mean(dim=1)

    def _read(
        self,
        keys: Float[Tensor, "#P heads patches y"],
        queries: Float[Tensor, "#P heads words y"],
        image: Tokens,
    ) -> Float[Tensor, "#P heads words patches"]:
        r"""$a_{whp}$, how much word w reads patch p with head h."""
        products = queries @ keys.mT / self._root
        return masked_softmax(products, image.mask[:, None, None], dim=3)

    @override
    def pair_bytes(self, image: PooledTokens, text: PooledTokens, training: bool) -> int:
        patches = image.token_count
        words = text.token_count
        gathered = sum(self.patch_sizes) * patches + sum(self.word_sizes) * words
        products = self.heads * patches * words
        # Products, attention and weights; a backward pass keeps the masked products too.
        copies = 4 if training else 3
        numbers = gathered + copies * products
        return numbers * image.pooled.element_size()

    @property
    def width(self) -> int:
        """W of the tokens."""
        return self.queries.in_features

    def _state(self, text: Tokens) -> Tokens:
        """The states of a text that are read, of word embeddings after the blocks before them."""
        if text.ids is None:
            return text
        tower = self.text_tower
        blocks = tower.layers + 1 + self.text_layer
        return tower.run(tower.start(text), 0, blocks)

    def _last(self, tower: Tower, state: Tokens, layer: int) -> Tokens:
        """The state after the last block of a frozen tower."""
        with evaluation_mode(*tower.blocks):
            return run_last(tower, state.trimmed(), -layer - 1)

    def _embedding(self, tower: Tower, last: Tokens) -> Vectors:
        with torch.no_grad():
            return normalize(tower.finish(last), dim=-1)

    @property
    def _root(self) -> float:
        r"""$\sqrt{d_h}$."""
        return math.sqrt(self.width / self.heads)
