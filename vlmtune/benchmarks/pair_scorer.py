"""What a benchmark asks for scores: a scorer of pairs, or any function of images and texts.

In: images and texts. Out: their scores, or their embeddings. Never: a model.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.types import ImageRef

IMAGES = 256  # in a call of a function of images and texts
Pairs = Int[Tensor, "P 2"] | None
PairScores = Float[Tensor, "P"] | Float[Tensor, "N M"]


@runtime_checkable
class PairScorer(Protocol):
    """Anything that scores images against texts."""

    def __call__(
        self, images: Sequence[ImageRef], texts: Sequence[str], pairs: Pairs = None
    ) -> PairScores:
        """Scores the P pairs (row of `images`, row of `texts`), or all N x M without `pairs`."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """Anything that embeds images and texts in one space; rows need not be normalised."""

    def embed_images(self, images: Sequence[ImageRef]) -> Float[Tensor, "N d"]:
        """Embeds N images."""
        ...

    def embed_texts(self, texts: Sequence[str]) -> Float[Tensor, "M d"]:
        """Embeds M texts."""
        ...


MatrixFunction = Callable[[Any, Any], Any]
"""A function `(images, texts)` that returns N x M scores: a tensor, an array or lists."""


def pair_scorer(score: PairScorer | MatrixFunction) -> PairScorer:
    """Returns a scorer of pairs unchanged, and makes one of a function of images and texts.

    The function is called with up to 256 images, and the texts that are paired with any of them.

    Example:
        >>> from pathlib import Path
        >>> def lengths(images, texts):
        ...     return [[len(image.path.name) + len(text) for text in texts] for image in images]
        >>> images = [ImageRef(Path("a.png")), ImageRef(Path("bb.png"))]
        >>> pair_scorer(lengths)(images, ["a cat", "a dog!"], torch.tensor([[1, 0], [0, 1]]))
        tensor([11., 11.], dtype=torch.float64)
    """
    if _takes_pairs(score):
        return score
    return _ByMatrix(score)


def _takes_pairs(score: PairScorer | MatrixFunction) -> TypeGuard[PairScorer]:
    try:
        inspect.signature(score).bind("images", "texts", "pairs")
    except TypeError:
        return False
    except ValueError:  # it does not tell its arguments
        return True
    return True


class _ByMatrix:
    """Scores of pairs, read from the matrices that a function returns."""

    def __init__(self, function: MatrixFunction) -> None:
        self.function = function

    def __call__(
        self, images: Sequence[ImageRef], texts: Sequence[str], pairs: Pairs = None
    ) -> PairScores:
        if pairs is None:
            return self._matrix(images, texts)
        scores = torch.zeros(len(pairs), dtype=torch.float64)
        rows, columns = pairs.unbind(dim=1)
        for part in rows.unique().split(IMAGES):
            chosen = torch.isin(rows, part).nonzero()[:, 0]
            paired = columns[chosen].unique()
            some_images = [images[int(i)] for i in part]
            some_texts = [texts[int(j)] for j in paired]
            matrix = self._matrix(some_images, some_texts)
            i = torch.searchsorted(part, rows[chosen])
            j = torch.searchsorted(paired, columns[chosen])
            scores[chosen] = matrix[i, j]
        return scores

    def _matrix(self, images: Sequence[ImageRef], texts: Sequence[str]) -> Float[Tensor, "N M"]:
        """All scores, in double precision."""
        returned = self.function(images, texts)
        matrix = torch.as_tensor(returned).detach().cpu().double()
        if matrix.shape != (len(images), len(texts)):
            raise UserError(
                f"expected scores of shape {(len(images), len(texts))} from a function of images "
                f"and texts, got {tuple(matrix.shape)}: return a row for each image, with a column "
                "for each text"
            )
        return matrix
