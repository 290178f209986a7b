"""Similarity map: a small convolutional network reads the cosines of patches and words (DCSM).

In: the last states of images, word embeddings of texts. Out: a score of each chosen pair.
Never: a change of the towers, or a word beyond the size of the map.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize, pad, relu
from typing_extensions import override

from vlmtune.adapters.base import JointAdapter, PairScores
from vlmtune.adapters.towers import each_token, run_all, text_tower, tower_of_one_shape
from vlmtune.adapters.words import ids_of_words
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import FeatureSpec, Tokens

FUNCTIONAL = ("left", "right", "above", "below", "front", "behind", "on", "under")
FUNCTIONAL += ("not", "no", "without")
VARIANCE_FLOOR = 1e-6  # a map of equal numbers has no deviation to divide by


class SimilarityMap(JointAdapter[Tokens, Tokens, Tokens]):
    r"""Scores a pair by a convolutional network over its map of cosines $M_{wp} = t_w^\top z_p$.

    $z_p$ are the normalised embeddings of the image's t tokens, class token included: each token
    after the last block goes through the frozen end of the tower alone. $t_w$ are those of the
    text's tokens, start and end included. A functional word, such as "left" or "not", has a fixed
    random row $(1 + n) / 3$ in place of its cosines, with n a unit vector (t).

    M is standardised over the rows of the text and filled with zeros up to `words` rows. Then
    $s = u^\top \mathrm{ReLU}(V \, \mathrm{ReLU}(\mathrm{conv}(\mathrm{ReLU}(\mathrm{conv}(M))))) +
    b$ with convolutions over 3 x 3 numbers to `channels` each, and V to `hidden` numbers.

    Choose it to see what cosines of frozen tokens alone contain, in comparison with `MMAdapter`.

    - Requirements: captions with hard negatives; towers that run block by block, images of one
      shape.
    - Recommended: `InfoNCE` on batches that hold the opposite of each caption, as in the released
      code (Adam, rate 1e-3, batches of 8); fewer `words` for short captions, as parameters and the
      cost of a pair grow with them.
    - Relations: `GroundedWords` reads contents and locations of patches; `MMAdapter` reads states.
    - Config: `--model.adapter similarity_map`.

    Source: DCSM (ICCV 2025, arXiv 2503.08723) and its released code, whose network has 4 channels
    in both convolutions, then 197 x 30 x 4 = 23,640 numbers to 128 and to 1 on CLIP ViT-B/16:
    3,026,365 parameters here. It has 11 functional rows, and its optimiser gets the network alone,
    so rows are fixed here too. The choice of functional words, the size 3 of the convolutions, the
    ReLUs, the zeros below a short text, and the rows over which M is standardised are ours.

    Args:
        words: Rows of the map; longer texts are cut.
        channels: Channels of both convolutions.
        hidden: Width of the layer after them.
        functional: Words with a row of their own. Those that the vocabulary lacks, or splits, have
            none.

    Example:
        >>> SimilarityMap(words=20).text_input
        FeatureSpec(kind='words', layer=-1, frozen=True)
    """

    broadcasts_image = True
    broadcasts_text = True
    functional_ids: Tensor
    functional_rows: Tensor

    def __init__(
        self,
        words: PositiveInt = 30,
        channels: PositiveInt = 4,
        hidden: PositiveInt = 128,
        functional: Sequence[str] = FUNCTIONAL,
    ) -> None:
        super().__init__()
        self.words = words
        self.channels = channels
        self.hidden = hidden
        self.functional = tuple(functional)
        self.image_input = FeatureSpec("state", -1)
        # Functional words are known by their ids, which word embeddings have.
        self.text_input = FeatureSpec("words")

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        self.image_tower = tower_of_one_shape(backbone)
        self.text_tower = text_tower(backbone)
        self.embed_dim = backbone.embed_dim
        self.image_tokens = self.image_tower.special + backbone.image_tokens
        known = ids_of_words(self.text_tower, self.functional, backbone.text_special)
        forms = chain.from_iterable(known.values())
        one_token = [form[0] for form in forms if len(form) == 1]
        distinct = list(dict.fromkeys(one_token))  # words that share an id are one
        device = self.text_tower.embedding.weight.device
        ids = torch.tensor(distinct, dtype=torch.int64, device=device)
        self.register_buffer("functional_ids", ids, persistent=False)
        # Kept with the weights, as the network learns to know these rows.
        directions = torch.randn(len(ids), self.image_tokens)
        unit = normalize(directions, dim=1)
        rows = (unit + 1) / 3
        self.register_buffer("functional_rows", rows)
        self.first = nn.Conv2d(1, self.channels, 3, padding=1)
        self.second = nn.Conv2d(self.channels, self.channels, 3, padding=1)
        numbers = self.channels * self.words * self.image_tokens
        self.join = nn.Linear(numbers, self.hidden)
        self.predict = nn.Linear(self.hidden, 1)

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        return image.with_values(self._embedded(self.image_tower, image, self.image_tower.special))

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        text = text.trimmed()
        with evaluation_mode(*self.text_tower.blocks):
            last = run_all(self.text_tower, text)
        # Some towers fill texts with padding, which is not in the map.
        last = last.cut(min(text.token_count, self.words))
        text = text.cut(self.words)
        embedded = self._embedded(self.text_tower, last, 0)
        # Beside each embedding, which functional word the token is; such words have no embedding.
        which = text.word_ids[:, :, None] == self.functional_ids
        is_functional = which.any(dim=2, keepdim=True)
        embedded = embedded * ~is_functional
        values = torch.cat([embedded, which.to(embedded.dtype)], dim=2)
        real = text.mask[:, :, None]
        return text.with_values(values * real)

    @override
    def score_pairs(self, image: Tokens, text: Tokens) -> PairScores:
        similarities = self.similarities(image, text)
        channels = relu(self.first(similarities[:, None]))
        channels = relu(self.second(channels))
        hidden = relu(self.join(channels.flatten(1)))
        return self.predict(hidden)[:, 0]

    def similarities(self, image: Tokens, text: Tokens) -> Float[Tensor, "P words t"]:
        """M of each pair, standardised and filled up with zeros."""
        # A functional word has no embedding here, and its row of the map is a constant one.
        sizes = [self.embed_dim, len(self.functional_ids)]
        embedded, which = text.values.split(sizes, dim=2)
        cosines = embedded @ image.values.mT
        products = cosines + which @ self.functional_rows
        # Padding has no part in the mean and the deviation, and is 0 afterwards.
        real = text.mask[:, :, None]
        words = real.sum(dim=1, keepdim=True)
        count = words * self.image_tokens
        total = (products * real).sum(dim=(1, 2), keepdim=True)
        mean = total / count
        centred = (products - mean) * real
        squared = (centred**2).sum(dim=(1, 2), keepdim=True)
        variance = squared / count
        deviation = (variance + VARIANCE_FLOOR).sqrt()
        standardised = centred / deviation
        # The layers after it read a map of one size.
        missing = self.words - text.token_count
        return pad(standardised, (0, 0, 0, missing))

    def _embedded(self, tower: Tower, last: Tokens, special: int) -> Float[Tensor, "n t d"]:
        """The normalised embedding of each token after the last block of a frozen tower."""
        with evaluation_mode(*tower.blocks):
            flat = each_token(tower, last.values.flatten(0, 1), special)
        unit = normalize(flat, dim=1)
        return unit.unflatten(0, last.mask.shape)

    @override
    def pair_bytes(self, image: Tokens, text: Tokens, training: bool) -> int:
        of_image = image.token_count * image.values.shape[2]
        of_text = text.token_count * text.values.shape[2]
        maps = self.words * self.image_tokens
        # Three maps on the way to the standardised one, then the channels of two layers, each
        # before and after its ReLU.
        numbers = of_image + of_text + maps * (3 + 4 * self.channels)
        return numbers * image.values.element_size()
