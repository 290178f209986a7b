"""Late interaction (MaxSim): each word is compared with the patch that fits it best.

In: token states of both towers after their last block. Out: a score of each chosen pair.
Never: a change of the towers, or a word that sees an image before it is compared.
"""

import math

import torch
from jaxtyping import Bool, Float
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize, one_hot
from typing_extensions import override

from vlmtune.adapters.base import JointAdapter, PairScores, Scale, Vectors
from vlmtune.adapters.towers import each_token, fills_texts, image_tower, run_all, text_tower
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import FeatureSpec, PooledTokens, Tokens

Cosines = Float[Tensor, "P words patches"]


class LateInteraction(JointAdapter[Tokens, Tokens, PooledTokens]):
    r"""Scores by the mean over words of the largest cosine that a word has with a patch.

    $s(I, T) = e^{\tau} \frac{1}{N_w} \sum_w \max_p \cos(z_w, z_p) + b
    + \lambda e^{\tau_0} \cos(v_I, t_T)$

    $z = F(x) + W \, \mathrm{LN}(x) + c$ is a token x after the last block, projected to the shared
    space: F is what the frozen backbone does with the token it pools (CLIP's final norm and
    projection; for attentional pooling, the pooling of this token alone), LN a layer norm without
    parameters. W and c are trained, for patches and for words, and start as 0. For CLIP z is thus
    one linear map of the normalised token, which starts as the backbone's own projection: the
    untrained adapter is the plain MaxSim readout. Start and end tokens and padding are left out.
    v and t are the embeddings of the frozen backbone and $e^{\tau_0}$ is its factor on cosines.

    With `symmetric` the first mean is averaged with the mean of the other direction,
    $\frac{1}{N_p} \sum_p \max_w \cos(z_w, z_p)$.

    In training the score leaves out the frozen score, whatever $\lambda$ is, as in `GroundedWords`:
    with it most pairs are easy from the start.

    Choose it for words that single patches show, at the cost of one product a pair.

    - Requirements: captions with hard negatives; towers that run block by block, whose last states
      may be stored.
    - Recommended: `PairBCE`; a `frozen_weight` above 0 where what the frozen model knows matters
      more than what training teaches.
    - Relations: `GroundedWords` reads several patches and their locations, `MMAdapter` fuses tokens
      before it scores; `FTLate` compares the means of tokens.
    - Config: `--model.adapter late_interaction`.

    Source: FILIP (Yao et al. 2022), section 3.1, and ColBERT (Khattab and Zaharia 2020), section
    3.3. Both train the encoders; here they are frozen. FILIP trains one loss on each direction,
    where `symmetric` averages both in one score. ColBERT sums over words rather than averaging, so
    that a long query counts for more, and keeps special tokens. W beside F, $\lambda$ and b are
    ours.

    Args:
        symmetric: Whether patches look for their best word too.
        frozen_weight: $\lambda$, the weight of the frozen score; 0 leaves it out, as the papers do.
        initial_scale: $e^{\tau}$ at the start.
        memory: Bytes that scoring a chunk of pairs may take, see `JointAdapter`.

    Example:
        >>> LateInteraction(symmetric=True).image_input
        FeatureSpec(kind='state', layer=-1, frozen=True)
    """

    broadcasts_image = True
    broadcasts_text = True
    gives_reading = True

    def __init__(
        self,
        symmetric: bool = False,
        frozen_weight: NonNegativeFloat = 0.0,
        initial_scale: Scale = 10.0,
        memory: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.symmetric = symmetric
        self.frozen_weight = frozen_weight
        self.initial_scale = initial_scale
        self.memory = memory
        self.image_input = self.text_input = FeatureSpec("state", -1)

    @override
    def attach(self, backbone: Backbone) -> None:
        self.text_tower = text_tower(backbone)
        # A state of a tower that reads padding no longer tells which tokens are words.
        if fills_texts(self.text_tower):
            self.text_input = FeatureSpec("words")
        super().attach(backbone)
        self.image_tower = image_tower(backbone)
        self.special = backbone.text_special
        self.image = _zero(self.image_tower.width, backbone.embed_dim)
        self.text = _zero(self.text_tower.width, backbone.embed_dim)
        self.frozen_scale = self.frozen_weight * backbone.logit_scale
        log_scale = math.log(self.initial_scale)
        self.log_scale = nn.Parameter(torch.tensor(log_scale))
        self.bias = nn.Parameter(torch.zeros(()))

    @override
    def prepare_image(self, image: Tokens) -> PooledTokens:
        tower = self.image_tower
        patches = image.without_first(tower.special)
        projected = _projected(tower, self.image, patches, tower.special)
        return PooledTokens(self._embedding(tower, image), projected)

    @override
    def prepare_text(self, text: Tokens) -> PooledTokens:
        text = text.trimmed()
        tower = self.text_tower
        last = text
        if text.ids is not None:
            with evaluation_mode(*tower.blocks):
                last = run_all(tower, text)
        # Where a tower fills texts up, its state is longer than the words.
        values = last.values[:, : text.token_count]
        projected = _projected(tower, self.text, text.with_values(values), 0)
        return PooledTokens(self._embedding(tower, last), projected)

    @override
    def score_pairs(self, image: PooledTokens, text: PooledTokens) -> PairScores:
        cosines = _cosines(image.tokens, text.tokens)
        patches = image.tokens.mask
        words = word_mask(text.tokens.mask, self.special)
        # A padded patch must not be the best patch of a word.
        of_real_patches = cosines.masked_fill(~patches[:, None], -torch.inf)
        best_of_word = of_real_patches.amax(dim=2)
        similarity = _mean(best_of_word, words)
        if self.symmetric:
            of_real_words = cosines.masked_fill(~words[:, :, None], -torch.inf)
            best_of_patch = of_real_words.amax(dim=1)
            similarity = (similarity + _mean(best_of_patch, patches)) / 2
        # In training, and without weight, the frozen embeddings have no numbers.
        frozen_cosine = (image.pooled * text.pooled).sum(dim=1)
        frozen = self.frozen_scale * frozen_cosine
        return self.log_scale.exp() * similarity + self.bias + frozen

    @override
    def recall_image(self, image: PooledTokens) -> Vectors:
        r"""The mean patch, and the frozen embedding: the score with a mean in place of the maximum.

        $\frac{1}{N_w} \sum_w \max_p \cos(z_w, z_p) \ge \bar z_w^\top \bar z_p$ with the means of
        normalised tokens, so that the product is at most the score without b and `symmetric`.
        """
        mean = masked_mean(image.tokens.values, image.tokens.mask)
        parts = [self.frozen_scale * image.pooled, self.log_scale.exp() * mean]
        return torch.cat(parts, dim=1)

    @override
    def recall_text(self, text: PooledTokens) -> Float[Tensor, "m d"]:
        """The mean word, and the frozen embedding."""
        words = word_mask(text.tokens.mask, self.special)
        mean = masked_mean(text.tokens.values, words)
        return torch.cat([text.pooled, mean], dim=1)

    @override
    def reading(self, image: PooledTokens, text: PooledTokens) -> Float[Tensor, "P words patches"]:
        """1 for the patch that fits a token best, 0 for all others."""
        cosines = _cosines(image.tokens, text.tokens)
        padding = ~image.tokens.mask[:, None]
        of_real_patches = cosines.masked_fill(padding, -torch.inf)
        best = of_real_patches.argmax(dim=2)
        patches = cosines.shape[2]
        return one_hot(best, patches).to(cosines.dtype)

    @override
    def pair_bytes(self, image: PooledTokens, text: PooledTokens, training: bool) -> int:
        patches = image.token_count
        words = text.token_count
        width = image.tokens.values.shape[2]
        gathered = (patches + words) * width
        # Cosines and, for each direction, their masked copy; a backward pass keeps them all.
        directions = 1 + self.symmetric
        copies = 1 + directions if training else 2
        numbers = gathered + copies * patches * words
        return numbers * image.tokens.values.element_size()

    def _embedding(self, tower: Tower, last: Tokens) -> Vectors:
        """The frozen embeddings, where scores have them."""
        if self.training or not self.frozen_weight:
            return last.values.new_zeros(len(last), 0)
        with torch.no_grad():
            return normalize(tower.finish(last), dim=1)


def _zero(width: int, embed_dim: int) -> nn.Linear:
    layer = nn.Linear(width, embed_dim)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _projected(tower: Tower, layer: nn.Linear, tokens: Tokens, special: int) -> Tokens:
    """Unit vectors z of tokens after the last block; padding is 0."""
    with torch.no_grad():
        flat = each_token(tower, tokens.values.flatten(0, 1), special)
        frozen = flat.unflatten(0, tokens.mask.shape)
    # The layer is 0 at the start, so that training begins from the frozen vectors.
    normed = layer_norm(tokens.values, [tower.width])
    trained = layer(normed)
    unit = normalize(frozen + trained, dim=2)
    real = tokens.mask[:, :, None]
    return tokens.with_values(unit * real)


def _cosines(image: Tokens, text: Tokens) -> Cosines:
    """Cosines of the words of text i with the patches of image i; one row may stand for all."""
    patches = image.values.mT
    words = text.values
    # A row that stands for all is a matrix, so that no product copies it.
    if len(image) == 1:
        return words @ patches[0]
    if len(text) == 1:
        return words[0] @ patches
    return words @ patches


def _mean(values: Float[Tensor, "P t"], mask: Bool[Tensor, "#P t"]) -> Float[Tensor, "P"]:
    """The mean of each row where `mask` is True."""
    total = (values * mask).sum(dim=1)
    return total / mask.sum(dim=1)
