"""What a benchmark asks for scores: a scorer of pairs, or any function of images and texts.

In: images and texts. Out: their scores or embeddings, all there and finite. Never: a model.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.benchmarks.items import Items
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
    takes_pairs: Any = score
    # Asked by its signature and not by a trial call, which may take minutes.
    try:
        signature = inspect.signature(score)
        bound = signature.bind("images", "texts", "pairs")
    except TypeError:
        return _by_matrix(score)
    except ValueError:  # it does not tell its arguments
        return takes_pairs
    # An option of its own, such as `batch_size=64`, is not for pairs.
    third = [signature.parameters[name] for name in bound.arguments][2:]
    if any(one.name != "pairs" and one.default is not one.empty for one in third):
        return _by_matrix(score)
    return takes_pairs


def _by_matrix(function: MatrixFunction) -> PairScorer:
    """Scores pairs by the matrices that a function returns."""

    def matrix(images: Sequence[ImageRef], texts: Sequence[str]) -> Float[Tensor, "N M"]:
        scores = torch.as_tensor(function(images, texts))
        scores = scores.detach().cpu().double()
        # Scores of pairs that nobody asked for may be NaN, but a wrong shape mixes pairs up.
        _check_shape(scores, (len(images), len(texts)), "a function of images and texts")
        return scores

    def score(images: Sequence[ImageRef], texts: Sequence[str], pairs: Pairs = None) -> PairScores:
        if pairs is None:
            return matrix(images, texts)
        scores = torch.zeros(len(pairs), dtype=torch.float64)
        rows, columns = pairs.unbind(dim=1)
        for some_rows in rows.unique().split(IMAGES):
            chosen = torch.isin(rows, some_rows).nonzero()[:, 0]
            some_columns = columns[chosen].unique()
            some_images = [images[int(row)] for row in some_rows]
            some_texts = [texts[int(column)] for column in some_columns]
            part = matrix(some_images, some_texts)
            # The matrix has the images and the texts in ascending order of their numbers.
            row_positions = torch.searchsorted(some_rows, rows[chosen])
            column_positions = torch.searchsorted(some_columns, columns[chosen])
            scores[chosen] = part[row_positions, column_positions]
        return scores

    return score


def check_scores(scores: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Raises `UserError` unless every score is there and finite."""
    _check_shape(scores, shape, name)
    # By parts: torch takes twice the memory of a matrix to look at all of it.
    wrong = 0
    for part in scores.split(IMAGES):
        is_wrong = ~part.isfinite()
        wrong += int(is_wrong.sum())
    if wrong:
        raise UserError(
            f"expected finite scores for {name}, {wrong} are NaN or infinite: "
            "lower the learning rate or use fp32, then evaluate again"
        )


def _check_shape(scores: Tensor, shape: tuple[int, ...], name: str) -> None:
    if tuple(scores.shape) != shape:
        raise UserError(
            f"expected scores of shape {shape} for {name}, got {tuple(scores.shape)}: return one "
            "for every pair, or a row for each image with a column for each text"
        )


def embed(
    score: PairScorer | MatrixFunction, items: Items, name: str
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "M d"]]:
    """Embeds all images and texts, in double precision."""
    if not isinstance(score, Embedder):
        raise UserError(
            f"expected a model that embeds images and texts for {name}, got one that only scores "
            "pairs: use a dual adapter, or leave the benchmark out (`ensemble: scores` where it "
            "has that option)"
        )
    images = embedded(score.embed_images(items.images), len(items.images), name)
    width = images.shape[1]  # both have one width, as their embeddings are compared
    texts = embedded(score.embed_texts(items.texts), len(items.texts), name, width)
    return images, texts


def embedded(
    rows: Float[Tensor, "n d"], count: int, name: str, width: int | None = None
) -> Float[Tensor, "n d"]:
    """Embeddings in double precision; raises `UserError` unless all are there and finite."""
    width = width or rows.shape[1]
    is_finite = bool(torch.isfinite(rows).all())
    if rows.shape != (count, width) or not is_finite:
        raise UserError(
            f"expected {count} finite embeddings of width {width} for {name}, got others, of shape "
            f"{tuple(rows.shape)}: use an adapter that projects both into one space, a lower "
            "learning rate or fp32"
        )
    return rows.detach().cpu().double()
