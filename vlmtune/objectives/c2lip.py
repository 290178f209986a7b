"""C2LIP's loss: captions, and the noun phrases of the captions, against images and their patches.

In: scores with tokens and phrases. Out: a loss. Never: a caption cut into phrases.
"""

import torch
from torch.nn.functional import softplus
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import Mask, Matrix, embedded_of, only, phrases_of
from vlmtune.objectives.sigmoid import Sigmoid
from vlmtune.types import Scores, ScoreShard


class C2LIP(ShardedObjective):
    r"""$L = L_{sig} + a L_{npc} + b L_{xac}$: captions, their phrases, and phrases over patches.

    $L_{sig}$ is `Sigmoid` over images and captions. The other two compare each image i with each of
    the K phrases $c_k$ of all captions of the batch:

    - Phrases: $L_{npc} = \frac{1}{K} \sum_{k,i} \log(1 + e^{-y_{ik} s_{ik}})$ with the score
      $s_{ik} = t \langle v_i, c_k \rangle + b$ of an image and a text, and y = 1 if a caption of
      image i has the phrase, else -1.
    - Pooling: $L_{xac}$ is the same with a vector of the image's patches $V_{ip}$ in place of
      $v_i$: $\hat v_{ik} = \sum_p a_p V_{ip} / \| \sum_p a_p V_{ip} \|$ with
      $a = \mathrm{softmax}_p \langle V_{ip}, c_k \rangle$, without a temperature. It has no
      parameters, and evaluation does not use it.

    Phrases come from the data, such as `data.phrases` of `ShardDataModule`; other objectives do not
    see them. A phrase of another image is a negative even if it is true of this one as well.

    Choose it for compositional understanding without hard negative captions.

    - Requirements: captions with noun phrases, `NounPhrases` as `data.phrases`, and an adapter that
      trains its bias.
    - Inputs: patch tokens, `FullFineTuning(tokens=True)`, unless `pooling_weight` is 0.
    - Recommended: SigLIP with `initial_bias: null` of the adapter (CLIP: `initial_scale: 10`,
      `initial_bias: -10`), long captions, a learning rate of 1e-5 and the default weights.
    - Relations: with both weights 0 it is `Sigmoid`; `FSCClip` pools patches for each word instead.
    - Config: `--config configs/experiments/overlays/c2lip.yaml`.

    Source: C2LIP, arXiv 2603.25722; the pooling follows the released code
    (github.com/SamsungLabs/concept_centric_clip, commit 9d02526). It differs from both in two
    points. The paper finds phrases with spaCy and pools the caption's tokens for each phrase; in
    the released code Phi-3.5-mini writes the phrases, and each is embedded as a text. Here the
    tagger of `NounPhrases` finds them, and each is embedded as a text. Equal phrases of a batch
    count as one phrase, true of all their images; in the paper and its code each is true of one
    image. A patch goes through the end of the tower alone: for SigLIP that is the value projection
    and the layers after it, as in the released code, for CLIP the final norm and the projection.

    Args:
        phrase_weight: Factor a.
        pooling_weight: Factor b; at 0 the adapter needs no tokens.

    Example:
        >>> import torch
        >>> from vlmtune.types import Embedded, PhraseScores, Targets, Tokens
        >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
        >>> embedded = Embedded(one, one, torch.tensor(4.0), Tokens.full(one[None]))
        >>> phrases = PhraseScores(zero, one > 0, one, zero > 0)
        >>> scores = Scores(zero, one > 0, embedded, phrases=phrases)
        >>> C2LIP()(scores, Targets.diagonal(1))
        tensor(1.3932)
    """

    needs = frozenset({"embedded", "tokens", "phrases"})

    def __init__(
        self, weight: Factor = 1.0, phrase_weight: Factor = 1.0, pooling_weight: Factor = 0.01
    ) -> None:
        super().__init__(weight)
        self.phrase_weight = phrase_weight
        self.pooling_weight = pooling_weight
        self.captions = Sigmoid()
        if pooling_weight == 0:
            self.needs = frozenset({"embedded", "phrases"})

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        embedded_of(shard.rows, "C2LIP")
        phrases = phrases_of(shard.rows, "C2LIP")
        caption_loss = self.captions.shard_loss(shard, group)
        phrase_loss = _mean_over_phrases(phrases.values, phrases.truth)
        loss = caption_loss + self.phrase_weight * phrase_loss
        if self.pooling_weight == 0:
            return loss
        pooling_loss = _mean_over_phrases(pooled_scores(shard.rows), phrases.truth)
        return loss + self.pooling_weight * pooling_loss


def _mean_over_phrases(values: Matrix, truth: Mask) -> Loss:
    """This rank's part, of its images: every rank has the phrases of all, so their number too."""
    signed = values.where(truth, -values)
    total = softplus(-signed).sum()
    return total / max(values.shape[1], 1)


def pooled_scores(scores: Scores) -> Matrix:
    """Scores of images and phrases, with the patches pooled for the phrase as the image."""
    phrases = phrases_of(scores, "C2LIP")
    embedded = embedded_of(scores, "C2LIP")
    assert embedded.image_tokens is not None, "an adapter that gives tokens"
    patches = embedded.image_tokens.values
    # (images, phrases, patches)
    similarity = phrases.text @ patches.transpose(1, 2)
    real = embedded.image_tokens.mask[:, None, :]
    attention = only(similarity, real).softmax(dim=2)
    # The pooled vector itself would take d numbers a pair. Its cosine with the phrase needs its
    # product with the phrase and its length, and the length follows from products of patches.
    product = (attention * similarity).sum(dim=2)
    gram = patches @ patches.transpose(1, 2)
    weighted = attention @ gram
    square = (weighted * attention).sum(dim=2)
    # The root of 0 has no finite gradient.
    tiny = torch.finfo(square.dtype).tiny
    length = square.clamp_min(tiny).sqrt()
    pooled_cosine = product / length
    # The score of the pair has temperature and bias; only its cosine is another one.
    cosine = embedded.image @ phrases.text.T
    return phrases.values + embedded.scale * (pooled_cosine - cosine)
