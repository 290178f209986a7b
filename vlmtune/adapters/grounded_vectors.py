"""Grounded vectors: a vector for each image and text, whose product is the score of grounded words.

In: token states of both towers. Out: embeddings.
Never: a pair of image and text before their vectors meet.
"""

from typing import Annotated

import torch
from annotated_types import Gt
from jaxtyping import Float
from pydantic import AllowInfNan, PositiveInt
from torch import Tensor
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Vectors
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.backbones.base import Backbone
from vlmtune.types import Tokens

Length = Annotated[float, Gt(0), AllowInfNan(False)]
"""The length of a vector."""


class GroundedVectors(DualAdapter[Tokens, Tokens]):
    r"""Scores by one vector an image and a text, which hold what `GroundedWords` reads.

    $s_{ij} = \langle r(I_i), r'(T_j) \rangle$ with the vectors of `GroundedWords.recall_image` and
    `recall_text`: the frozen score, weighted by $\lambda$, plus the evidence to first order. In
    training the frozen score is left out, as in `GroundedWords`.

    In the evidence, a word sums the contributions of patches, weighted by its attention to each. To
    first order in the queries this attention is linear in the patch: the sum over patches of keys
    times contents then depends on the image alone, and queries times weights of content on the text
    alone. So a single vector keeps which colour belongs to which shape, and which object is on
    which side. Three things of `GroundedWords` are lost: the second order, what the frozen model
    knows of words that no training text has, and the logarithm in the score (`leak`).

    With `directions` the evidence part u of r gets shorter: $(B^\top (u - m), 1)$ for an image and
    $(B^\top u', m^\top u')$ for a text, with the mean m of some images and the directions B in
    which these differ most. Their products are those of u and u' but for the other directions.

    An embedding is $(r / M, \sqrt{1 - |r / M|^2}, 0)$ for an image and $(r' / N, 0,
    \sqrt{1 - |r' / N|^2})$ for a text. All have the length 1, so a cosine has the order of the
    scores: $s = M N \cos$. They have 2 numbers more than r, see `recall_image`.

    Choose it where images are found by vectors, and captions say which attribute belongs to which
    object, or where objects are.

    - Requirements: the same as for `GroundedWords`.
    - Recommended: train `GroundedWords`, then `vlmtune export CHECKPOINT --vectors 2`, then train
      from that by `model.start_from`, with `PairBCE` and half the learning rate. Training from
      random weights takes one stage instead of two, and binds less. A larger $\lambda$ keeps more
      of the frozen scores and binds less.
    - Relations: `GroundedWords` scores pairs, which is slower and more accurate.
    - Config: `--model.adapter grounded_vectors`.

    Source: ours. Attention without a softmax as a sum of outer products is that of Katharopoulos et
    al. (2020, section 3.2).

    Args:
        adapter: The grounded words. Their `frozen_weight` is $\lambda$; their `leak` and
            `meaning_weight` have no effect.
        image_length: $M^2$ is the squared length of the frozen part plus the square of this length.
        text_length: The same for $N^2$. A longer vector is shortened.
        directions: Columns of B, which `fit_directions` finds; None for the whole of u.

    Example:
        >>> GroundedVectors(GroundedWords(frozen_weight=2.0)).adapter.frozen_weight
        2.0
    """

    identity_at_init = False
    mean: Float[Tensor, "D"]
    basis: Float[Tensor, "D k"]

    def __init__(
        self,
        adapter: GroundedWords,
        image_length: Length = 16.0,
        text_length: Length = 512.0,
        directions: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.adapter = adapter
        self.image_length = image_length
        self.text_length = text_length
        self.directions = directions

    @classmethod
    def of(
        cls,
        words: GroundedWords,
        backbone: Backbone,
        frozen_weight: float,
        directions: int | None = None,
        **lengths: float,
    ) -> "GroundedVectors":
        """The vectors of trained grounded words, with another weight of the frozen score.

        `lengths` are those of images and texts, if they are not the default.
        """
        arguments = {**words.init_args, "frozen_weight": frozen_weight}
        vectors = cls(GroundedWords(**arguments), directions=directions, **lengths)
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
        # Numbers of the evidence, see `recall_image`.
        heads = self.adapter.heads
        of_head = self.adapter.width // heads
        self.size = heads * (of_head + 1) * (of_head + 2 * self.adapter.locations)
        if self.directions is not None:
            self.register_buffer("mean", torch.zeros(self.size))
            self.register_buffer("basis", torch.zeros(self.size, self.directions))

    def fit_directions(self, embedded: Vectors) -> None:
        """Finds m and B by embeddings of n images without `directions`, of the same weights.

        B holds the first right singular vectors of the centred evidence.
        """
        # The last two numbers fill the vectors up.
        evidence = self.image_norm * embedded[:, -self.size - 2 : -2]
        self.mean.copy_(evidence.mean(dim=0))
        centred = evidence - self.mean
        # From the n x n matrix of products, as vectors over ViT-B/32 have 67,080 numbers.
        products = (centred @ centred.T).double()
        _, vectors = torch.linalg.eigh(products)
        # `eigh` sorts upwards.
        largest = vectors.flip(1)[:, : self.directions].to(centred.dtype)
        scaled = centred.T @ largest
        # Orthonormal, also where directions have hardly any length.
        self.basis.copy_(torch.linalg.qr(scaled).Q)

    @override
    def embed_image(self, image: Tokens) -> Vectors:
        prepared = self.adapter.prepare_image(image)
        vectors = self.adapter.recall_image(prepared)
        if self.directions is not None:
            frozen, evidence = self._parts(vectors)
            projected = (evidence - self.mean) @ self.basis
            one = torch.ones_like(evidence[:, :1])
            vectors = torch.cat([frozen, projected, one], dim=1)
        unit, rest = _filled(vectors, self.image_norm)
        return torch.cat([unit, rest, torch.zeros_like(rest)], dim=1)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        prepared = self.adapter.prepare_text(text)
        vectors = self.adapter.recall_text(prepared)
        if self.directions is not None:
            frozen, evidence = self._parts(vectors)
            of_mean = evidence @ self.mean[:, None]
            vectors = torch.cat([frozen, evidence @ self.basis, of_mean], dim=1)
        unit, rest = _filled(vectors, self.text_norm)
        return torch.cat([unit, torch.zeros_like(rest), rest], dim=1)

    def _parts(self, vectors: Vectors) -> tuple[Float[Tensor, "n frozen"], Float[Tensor, "n D"]]:
        """The frozen part, without numbers in training, and the evidence."""
        return vectors[:, : -self.size], vectors[:, -self.size :]


def _filled(vectors: Vectors, norm: float) -> tuple[Vectors, Float[Tensor, "n 1"]]:
    """The vectors divided by `norm`, at most of length 1, and what fills each up to that length."""
    vectors = vectors / norm
    length = vectors.norm(dim=1, keepdim=True)
    vectors = vectors / length.clamp(min=1)
    square = vectors.square().sum(dim=1, keepdim=True)
    # Not quite 0, where the root has no gradient.
    rest = (1 - square).clamp(min=1e-12).sqrt()
    return vectors, rest
