"""The values that flow through vlmtune, and the letters their shapes are written in.

Shape legend:
    k, m    images and texts of one group            N, M    images and texts of one batch or bank
    n       rows of one modality (N or M)            t       tokens of the longest row
    d       width of the shared embedding space      w       width of one tower's tokens
    P       chosen image-text pairs
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

RowsT = TypeVar("RowsT", bound="Rows")


@dataclass(frozen=True)
class ImageRef:
    """An image file, whole or cropped: what a benchmark asks to be scored.

    Attributes:
        path: The file.
        box: `(x, y, width, height)` in pixels of the file, or None for the whole image. A box may
            reach outside the image; what lies outside is black.
    """

    path: Path
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Group:
    """k images, m texts and which text is true of which image: one training sample or test item.

    Attributes:
        key: Name of the record, unique within its shard set.
        image_ids: Ids of the k images, unique within the corpus.
        text_ids: Ids of the m texts. Equal ids mean the same caption everywhere in the corpus.
        texts: The m captions.
        truth: `truth[i, j]` is True where text j is true of image i, shape (k, m).
        true_ids: For each image, the ids of all captions known to be true of it, in this group or
            in any other.
        exhaustive: True where a caption of the corpus that is not in `true_ids` is false, False
            where it may merely be unannotated (GQA, Visual Genome).
        images: The decoded images (PIL, RGB), or None where features are read instead.
        same_group: `same_group[i, j]` is False where text j was made for another image of the
            group and nothing
            is known of image i; None where every text belongs to every image. Shape (k, m).
        mined_negatives: Ids of captions of other groups of the batch that a similarity cache finds
            hard for these images; None where nothing is mined.
    """

    key: str
    image_ids: tuple[str, ...]
    text_ids: tuple[str, ...]
    texts: tuple[str, ...]
    truth: Bool[Tensor, "k m"]
    true_ids: tuple[frozenset[str], ...]
    exhaustive: bool = False
    images: tuple[Any, ...] | None = None
    same_group: Bool[Tensor, "k m"] | None = None
    mined_negatives: frozenset[str] | None = None


@dataclass(frozen=True)
class Targets:
    """What is true in a batch of N images and M texts.

    Attributes:
        truth: True where the text is true of the image.
        known: True where `truth` is annotated: within a group, and everywhere for an image whose
            corpus is exhaustive. Elsewhere False in `truth` means "presumably".
        same_group: True where image and text belong to one group; `same_group & ~truth` are the
            hard negatives.
        mined_negatives: True where a similarity cache finds the text, false here, hard for the
            image; None where nothing is mined.
    """

    truth: Bool[Tensor, "N M"]
    known: Bool[Tensor, "N M"]
    same_group: Bool[Tensor, "N M"]
    mined_negatives: Bool[Tensor, "N M"] | None = None

    def to(self, device: torch.device | str) -> "Targets":
        """Returns the targets on `device`."""
        return self.map(lambda matrix: matrix.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Targets":
        """Returns the targets with `change` applied to each matrix."""
        mined = None if self.mined_negatives is None else change(self.mined_negatives)
        return Targets(change(self.truth), change(self.known), change(self.same_group), mined)


@dataclass(frozen=True)
class Batch:
    """The groups of one step, flattened: N images, M distinct texts, and their targets.

    Attributes:
        keys: Keys of the groups.
        image_ids: N image ids.
        texts: M captions, each once.
        targets: What is true.
        image_group: For each image the position of its group in `keys`.
        pixels: Preprocessed images, or None where features are read from the store.
        damaged: One line for each record that was skipped since the batch before.
        text_ids: M text ids.
        true_ids: For each image the ids of all captions known to be true of it, here or elsewhere.
        exhaustive: For each image whether a caption that is not among them is false.
    """

    keys: tuple[str, ...]
    image_ids: tuple[str, ...]
    texts: tuple[str, ...]
    targets: Targets
    image_group: Int[Tensor, "N"]
    pixels: Float[Tensor, "N 3 height width"] | None = None
    damaged: tuple[str, ...] = ()
    text_ids: tuple[str, ...] = ()
    true_ids: tuple[frozenset[str], ...] = ()
    exhaustive: tuple[bool, ...] = ()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Returns the batch on `device` (Lightning calls this)."""
        pixels = None if self.pixels is None else self.pixels.to(device, non_blocking=non_blocking)
        return replace(
            self,
            targets=self.targets.to(device),
            image_group=self.image_group.to(device),
            pixels=pixels,
        )


@dataclass(frozen=True)
class FeatureSpec:
    """Which representation of one modality an adapter reads, and whether gradients reach behind it.

    Attributes:
        kind: "pooled" (n, d) embeddings, not normalised; "tokens" (n, t, w) of one layer, special
            image tokens and padding left out; "state" (n, t, w), everything the tower needs to go
            on from there; "words" (texts only), word embeddings before positions, with their ids.
        layer: Whose output is read, counted from the end. Tokens: -1 is the last block after the
            tower's final norm, -2 the block before it, without that norm (Cola's "second-last layer
            features", `hidden_states[-2]`). States never have the final norm; -(layers + 1) is what
            the first block gets.
        frozen: True where nothing before this point is trained, so that it may be stored.
    """

    kind: Literal["pooled", "tokens", "state", "words"]
    layer: int = -1
    frozen: bool = True


class Rows(ABC):
    """A tensor, or several, with one row for each of n images or texts."""

    @abstractmethod
    def map(self: RowsT, change: Callable[[Tensor], Tensor]) -> RowsT:
        """Returns the rows with `change` applied to each of their tensors."""

    @abstractmethod
    def joined(self: RowsT, others: Sequence[Any]) -> RowsT:
        """Returns these rows followed by those of `others`, which have the same type."""

    @property
    @abstractmethod
    def lengths(self) -> Int[Tensor, "n"]:
        """How many real tokens each row has; 0 where rows have no tokens."""

    @abstractmethod
    def cut(self: RowsT, length: int) -> RowsT:
        """Keeps the first `length` tokens of each row."""

    def trimmed(self: RowsT) -> RowsT:
        """Cuts padding that no row needs.

        Example:
            >>> mask = torch.tensor([[True, False, False]])
            >>> Tokens(torch.zeros(1, 3, 4), mask).trimmed().values.shape
            torch.Size([1, 1, 4])
        """
        return self.cut(int(self.lengths.max())) if len(self) else self

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self: RowsT, rows: Any) -> RowsT:
        """Returns the chosen rows (a slice or an index tensor)."""
        return self.map(lambda tensor: tensor[rows])

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.lengths.device

    def to(self: RowsT, device: torch.device | str, dtype: torch.dtype | None = None) -> RowsT:
        """Returns the rows on `device`, real-valued tensors as `dtype` unless it is None."""
        return self.map(
            lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else None)
        )


@dataclass(frozen=True)
class Pooled(Rows):
    """One vector for each of n images or texts.

    Attributes:
        values: The vectors, not normalised.
    """

    values: Float[Tensor, "n d"]

    @override
    def map(self, change: Callable[[Tensor], Tensor]) -> "Pooled":
        return Pooled(change(self.values))

    @override
    def joined(self, others: Sequence[Any]) -> "Pooled":
        return Pooled(torch.cat([self.values, *(other.values for other in others)]))

    @property
    @override
    def lengths(self) -> Int[Tensor, "n"]:
        return self.values.new_zeros(len(self.values), dtype=torch.int64)

    @override
    def cut(self, length: int) -> "Pooled":
        del length
        return self


@dataclass(frozen=True)
class Tokens(Rows):
    """Tokens of n images or texts, real ones first.

    Attributes:
        values: Token states, zero where `mask` is False.
        mask: True where a token is real (for texts, start and end tokens are real).
        ids: Token ids, where the tokens are word embeddings.
    """

    values: Float[Tensor, "n t w"]
    mask: Bool[Tensor, "n t"]
    ids: Int[Tensor, "n t"] | None = None

    @staticmethod
    def full(values: Float[Tensor, "n t w"]) -> "Tokens":
        """Tokens without padding."""
        return Tokens(values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device))

    @override
    def map(self, change: Callable[[Tensor], Tensor]) -> "Tokens":
        ids = None if self.ids is None else change(self.ids)
        return Tokens(change(self.values), change(self.mask), ids)

    @override
    def joined(self, others: Sequence[Any]) -> "Tokens":
        parts = [self, *others]
        longest = max(part.mask.shape[1] for part in parts)
        parts = [part.padded(longest) for part in parts]
        ids = [part.ids for part in parts if part.ids is not None]
        return Tokens(
            torch.cat([part.values for part in parts]),
            torch.cat([part.mask for part in parts]),
            torch.cat(ids) if ids else None,
        )

    @property
    @override
    def lengths(self) -> Int[Tensor, "n"]:
        return self.mask.sum(dim=1)

    @override
    def cut(self, length: int) -> "Tokens":
        return self.map(lambda tensor: tensor[:, :length])

    @property
    def word_ids(self) -> Int[Tensor, "n t"]:
        """The ids of word embeddings, which always have them."""
        assert self.ids is not None
        return self.ids

    def padded(self, length: int) -> "Tokens":
        """Appends padding up to `length` tokens a row."""
        missing = length - self.mask.shape[1]
        return self.map(lambda x: pad(x, (0,) * (2 * x.ndim - 3) + (missing,)))


@dataclass(frozen=True)
class PooledTokens(Rows):
    """A vector and tokens for each of n images or texts.

    Attributes:
        pooled: The vectors.
        tokens: The tokens.
    """

    pooled: Float[Tensor, "n d"]
    tokens: Tokens

    @override
    def map(self, change: Callable[[Tensor], Tensor]) -> "PooledTokens":
        return PooledTokens(change(self.pooled), self.tokens.map(change))

    @override
    def joined(self, others: Sequence[Any]) -> "PooledTokens":
        return PooledTokens(
            torch.cat([self.pooled, *(other.pooled for other in others)]),
            self.tokens.joined([other.tokens for other in others]),
        )

    @property
    @override
    def lengths(self) -> Int[Tensor, "n"]:
        return self.tokens.lengths

    @override
    def cut(self, length: int) -> "PooledTokens":
        return PooledTokens(self.pooled, self.tokens.cut(length))


Features = Pooled | Tokens
"""What a backbone gives of images or texts."""


def concatenate(parts: Sequence[RowsT]) -> RowsT:
    """Stacks rows of one type; tokens are padded to the longest.

    Example:
        >>> both = concatenate([Tokens.full(torch.ones(1, 2, 4)), Tokens.full(torch.ones(1, 3, 4))])
        >>> both.lengths
        tensor([2, 3])
    """
    return parts[0].joined(parts[1:])


@dataclass(frozen=True)
class Embedded:
    """What a dual adapter's scores are made of, for objectives that look inside.

    Attributes:
        image: Embeddings of the images, normalised.
        text: Embeddings of the texts, normalised.
        scale: Factor on cosines, a scalar with gradient where it is trained.
        image_tokens: Patch tokens in the shared space, where the adapter gives them.
        text_tokens: Word tokens in the shared space, where the adapter gives them.
    """

    image: Float[Tensor, "N d"]
    text: Float[Tensor, "M d"]
    scale: Float[Tensor, ""]
    image_tokens: Tokens | None = None
    text_tokens: Tokens | None = None


@dataclass(frozen=True)
class Scores:
    """Training scores of N images against M texts, and which of them were computed.

    Attributes:
        values: `values[i, j]` says how well text j fits image i; 0 where not computed.
        computed: True where `values` holds a score.
        embedded: What the scores are made of, where the adapter is dual.
        reference: Scores of the frozen backbone itself, where an objective asks for them.
    """

    values: Float[Tensor, "N M"]
    computed: Bool[Tensor, "N M"]
    embedded: Embedded | None = None
    reference: Float[Tensor, "N M"] | None = None

    @staticmethod
    def full(values: Float[Tensor, "N M"]) -> "Scores":
        """Scores all of which were computed."""
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


@dataclass(frozen=True)
class ScoreShard:
    """One rank's share of a global batch of N images and M texts; n and m of them are its own.

    Attributes:
        rows: Scores of its images against all texts, (n, M).
        row_targets: What is true there.
        columns: Scores of all images against its texts, (N, m).
        column_targets: What is true there.
        row_start: Position of its first image among the N.
        column_start: Position of its first text among the M.
    """

    rows: Scores
    row_targets: Targets
    columns: Scores
    column_targets: Targets
    row_start: int = 0
    column_start: int = 0
