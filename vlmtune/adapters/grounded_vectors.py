"""Grounded vectors: a vector for each image and text, whose product is the score of grounded words.

In: token states of both towers. Out: embeddings.
Never: a pair of image and text before their vectors meet.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Vectors
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.backbones.base import Backbone
from vlmtune.types import Tokens

Length = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""The length of a vector."""


class GroundedVectors(DualAdapter[Tokens, Tokens]):
    r"""Scores by one vector an image and a text, which hold what `GroundedWords` reads.

    $s_{ij} = \langle r(I_i), r'(T_j) \rangle$ with the vectors of `GroundedWords.recall_image` and
    `recall_text`: the frozen score, weighted by $\lambda$, plus the evidence to first order.

    In the evidence a word sums over patches what they count for, by how much it reads each. To
    first order in the queries these weights are linear in the patch: the sum over patches of keys
    times contents then belongs to the image alone, and queries times weights of content to the
    text. So colours stay with their shapes, and relations with their sides, in a single vector.
    Against `GroundedWords` three things are lost: the second order, what the frozen model knows of
    words that no training text has, and the logarithm of `leak`.

    An embedding is $(r / M, \sqrt{1 - |r / M|^2}, 0)$ for an image and $(r' / N, 0,
    \sqrt{1 - |r' / N|^2})$ for a text. All have the length 1, so a cosine has the order of the
    scores: $s = M N \cos$. They have 2 numbers more than r, see `recall_image`.

    Choose it where images are found by their vectors, and a caption says what belongs to what or
    lies where.

    - Requirements: those of `GroundedWords`.
    - Recommended: train `GroundedWords`, then `vlmtune export CHECKPOINT --vectors 2`, then train
      from that by `model.start_from`, with `PairBCE` and half the learning rate. From random
      weights nothing is learnt. A larger $\lambda$ keeps more of the frozen scores and binds less.
    - Relations: `GroundedWords` scores pairs, which is slower and more accurate. `ProductPooling`
      has fewer numbers, reads no relations and is trained as it is used.
    - Config: `--model.adapter grounded_vectors`.

    Source: ours. Attention without a softmax as a sum of outer products is that of Katharopoulos et
    al. (2020, section 3.2).

    Args:
        adapter: The grounded words. Their `frozen_weight` is $\lambda$; their `leak` and
            `meaning_weight` do not count.
        image_length: What $M^2$ has beyond the frozen part: the square of this length.
        text_length: The same of $N^2$. A longer vector is shortened.

    Example:
        >>> GroundedVectors(GroundedWords(frozen_weight=2.0)).adapter.frozen_weight
        2.0
    """

    identity_at_init = False

    def __init__(
        self, adapter: GroundedWords, image_length: Length = 16.0, text_length: Length = 512.0
    ) -> None:
        super().__init__()
        self.adapter = adapter
        self.image_length = image_length
        self.text_length = text_length

    @classmethod
    def of(
        cls, words: GroundedWords, backbone: Backbone, frozen_weight: float
    ) -> "GroundedVectors":
        """The vectors of trained grounded words, with another weight of the frozen score."""
        arguments = {**words.init_args, "frozen_weight": frozen_weight}
        vectors = cls(GroundedWords(**arguments))
        vectors.attach(backbone)
        vectors.adapter.load_state_dict(words.state_dict())
        return vectors

    @override
    def attach(self, backbone: Backbone) -> None:
        # Vectors hold neither what unread words mean nor the constant of all scores.
        self.adapter.meaning_weight = 0.0
        self.adapter.attach(backbone)
        self.adapter.bias.requires_grad_(False)
        # The adapter knows what it reads of texts once it is attached.
        self.image_input = self.adapter.image_input
        self.text_input = self.adapter.text_input
        # The frozen parts have the lengths of their scale and 1.
        self.image_norm = (self.adapter.scale**2 + self.image_length**2) ** 0.5
        self.text_norm = (1 + self.text_length**2) ** 0.5
        self.initial_scale = self.image_norm * self.text_norm
        super().attach(backbone)

    @override
    def embed_image(self, image: Tokens) -> Vectors:
        prepared = self.adapter.prepare_image(image)
        unit, rest = _filled(self.adapter.recall_image(prepared), self.image_norm)
        return torch.cat([unit, rest, torch.zeros_like(rest)], dim=1)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        prepared = self.adapter.prepare_text(text)
        unit, rest = _filled(self.adapter.recall_text(prepared), self.text_norm)
        return torch.cat([unit, torch.zeros_like(rest), rest], dim=1)


def _filled(vectors: Vectors, norm: float) -> tuple[Vectors, Float[Tensor, "n 1"]]:
    """The vectors divided by `norm`, at most of length 1, and what fills each up to that length."""
    vectors = vectors / norm
    length = vectors.norm(dim=1, keepdim=True)
    vectors = vectors / length.clamp(min=1)
    square = vectors.square().sum(dim=1, keepdim=True)
    # Not quite 0, where the root has no gradient.
    rest = (1 - square).clamp(min=1e-12).sqrt()
    return vectors, rest
