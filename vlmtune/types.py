"""The values that flow through vlmtune, and the letters of their shapes.

In: tensors. Out: rows of them, cut, padded or moved. Never: a computation of features or scores.

Shape legend:
    k, m    images and texts of one group            N, M    images and texts of one batch or bank
    n       rows of one modality (N or M)            t       tokens of the longest row
    d       width of the shared embedding space      w       width of one tower's tokens
    P       chosen image-text pairs          K       phrases of the captions of one batch
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

RowsT = TypeVar("RowsT", bound="Rows")
Pixels = Float[Tensor, "n 3 height width"]
"""Preprocessed images."""


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Returns the tensor on `device`; a copy to a GPU does not wait for what it still computes."""
    target = torch.device(device)
    if target.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # no other memory is copied while the CPU goes on
    # Copies to the CPU would be read before they are complete; those to MPS have such a bug.
    waits = target.type in {"cpu", "mps"}
    return tensor.to(target, non_blocking=not waits)


def positions(
    mask: Bool[Tensor, "N M"], device: torch.device | str
) -> tuple[Int[Tensor, "P"], Int[Tensor, "P"]]:
    """Returns row and column of each True entry of a mask on the CPU, row by row, on `device`."""
    # NumPy is faster where few entries are True, as in the truth of a large batch.
    flat = np.flatnonzero(mask.numpy())
    both = np.stack(np.unravel_index(flat, mask.shape))
    rows, columns = send(torch.from_numpy(both), device)
    return rows, columns


@dataclass(frozen=True)
class ImageRef:
    """An image file, whole or cropped, that a benchmark wants scored.

    Attributes:
        box: `(x, y, width, height)` in pixels, or None for all; black outside the image.
        upright: Whether the image is turned by its EXIF orientation before the box is cut.
            Published scripts leave it as it is stored.
    """

    path: Path
    box: tuple[int, int, int, int] | None = None
    upright: bool = True


@dataclass(frozen=True)
class Group:
    """k images, m texts and their truth: one training sample or test item.

    `truth[i, j]` is True where text j is true of image i.

    Attributes:
        key: Name of the record, unique within its shard set.
        image_ids: Ids of the k images, unique within the corpus.
        text_ids: Ids of the m texts. Equal ids mean the same caption everywhere in the corpus.
        true_ids: For each image, the ids of all captions known to be true of it, in this group or
            in any other.
        exhaustive: True where a caption of the corpus that is not in `true_ids` is false, False
            where it may merely be unannotated (GQA, Visual Genome).
        images: The decoded images (PIL, RGB), or None where features are read instead.
        same_group: `same_group[i, j]` is False if text j was made for another image of the group
            and its truth for image i is unknown, or if it counts as a text of another group; None
            if every text belongs to every image.
        mined_negatives: Ids of captions in other groups of the batch that a similarity cache found
            hard for these images; None without mining.
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
        known: True where `truth` is annotated: within a group, and everywhere for an image whose
            corpus is exhaustive. Elsewhere False in `truth` means "presumably".
        same_group: True where image and text belong to one group; `same_group & ~truth` are the
            hard negatives.
        mined_negatives: True where a similarity cache found the text, false here, hard for the
            image; None without mining.
        source: The targets on the CPU that these were moved from; None if they were not.
    """

    truth: Bool[Tensor, "N M"]
    known: Bool[Tensor, "N M"]
    same_group: Bool[Tensor, "N M"]
    mined_negatives: Bool[Tensor, "N M"] | None = None
    source: "Targets | None" = None

    @staticmethod
    def diagonal(n: int) -> "Targets":
        """Targets of n images and n texts: text i is true of image i, presumably of no other.

        Example:
            >>> Targets.diagonal(2).truth.tolist()
            [[True, False], [False, True]]
        """
        truth = torch.eye(n, dtype=torch.bool)
        return Targets(truth, truth, truth)

    def to(self, device: torch.device | str) -> "Targets":
        """Returns the targets on `device`."""
        moved = self.map(lambda matrix: send(matrix, device))
        return replace(moved, source=self.on_cpu())

    def on_cpu(self) -> "Targets":
        """Returns the targets on the CPU; no GPU is waited for if they were moved from there."""
        if self.truth.device.type == "cpu":
            return self
        return self.source or self.map(lambda matrix: matrix.cpu())

    def true_pairs(self) -> tuple[Int[Tensor, "P"], Int[Tensor, "P"]]:
        """Returns image and text of each true pair, row by row, on the device of the targets.

        Example:
            >>> Targets.diagonal(2).true_pairs()
            (tensor([0, 1]), tensor([0, 1]))
        """
        return positions(self.on_cpu().truth, self.truth.device)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Targets":
        """Returns the targets with `change` applied to each matrix."""
        mined = None if self.mined_negatives is None else change(self.mined_negatives)
        return Targets(change(self.truth), change(self.known), change(self.same_group), mined)


@dataclass(frozen=True)
class Batch:
    """The groups of one step, flattened: N images, M distinct texts, and their targets.

    Attributes:
        image_group: For each image the position of its group in `keys`.
        pixels: Preprocessed images, or None where features are read from the store.
        damaged: One line for each record that was skipped since the batch before.
        true_ids, exhaustive: For each image, as in `Group`.
        phrases: Phrases of the captions, as texts of the same images; None without `data.phrases`.
        token_ids: The tokens of the texts, if a backbone has them made beside the images.
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
    phrases: "Batch | None" = None
    token_ids: Int[Tensor, "M t"] | None = None

    def pin_memory(self) -> "Batch":
        """Returns the batch with pixels that a GPU can copy by itself (a DataLoader calls this)."""
        return self if self.pixels is None else replace(self, pixels=self.pixels.pin_memory())

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch on `device` (Lightning calls this)."""
        targets = self.targets.to(device)
        image_group = send(self.image_group, device)
        pixels = None if self.pixels is None else send(self.pixels, device)
        phrases = None if self.phrases is None else self.phrases.to(device)
        return replace(
            self, targets=targets, image_group=image_group, pixels=pixels, phrases=phrases
        )


@dataclass(frozen=True)
class FeatureSpec:
    """Which features of one modality an adapter takes, and whether gradients flow into them.

    Attributes:
        kind: "pooled" (n, d) embeddings, not normalised; "tokens" (n, t, w) of one layer, without
            special image tokens and padding; "state" (n, t, w), all that the tower needs to go on
            from there; "words" (texts only), word embeddings before positions, with their ids.
        layer: The layer, counted from the end. Tokens: -1 is the last block after the final norm,
            -2 the block before it, without that norm (Cola's "second-last layer features"). States
            never have the final norm; -(layers + 1) is the input of the first block.
        frozen: True if nothing before this point is trained, so the features may be stored.
    """

    kind: Literal["pooled", "tokens", "state", "words"]
    layer: int = -1
    frozen: bool = True


class Rows(ABC):
    """Tensors with one row for each of n images or texts."""

    @abstractmethod
    def map(self: RowsT, change: Callable[..., Tensor], *others: Any) -> RowsT:
        """Returns the rows with `change` applied to each tensor, and to the same of `others`."""

    @property
    @abstractmethod
    def lengths(self) -> Int[Tensor, "n"]:
        """How many real tokens each row has, on the CPU; a GPU is asked if that is not noted."""

    def with_lengths(self: RowsT, lengths: Int[Tensor, "n"] | None) -> RowsT:
        """Notes the lengths, so that no GPU is asked; None forgets them."""
        return self

    @property
    def each(self) -> Tensor:
        """The first field: a tensor with an entry for each row, where the rows are."""
        return next(iter(vars(self).values()))

    @property
    def token_count(self) -> int:
        """t, padding included; 0 for rows without tokens."""
        return 0

    def cut(self: RowsT, length: int) -> RowsT:
        """Keeps the first `length` tokens of each row."""
        return self

    def padded(self: RowsT, length: int) -> RowsT:
        """Appends padding up to `length` tokens a row."""
        return self

    def trimmed(self: RowsT) -> RowsT:
        """Cuts padding that no row needs.

        While torch exports a graph it stays: the shapes of a graph cannot depend on the data.
        """
        if torch.compiler.is_exporting() or not len(self):
            return self
        lengths = self.lengths
        return self.cut(int(lengths.max())).with_lengths(lengths)

    def take(self: RowsT, rows: Int[Tensor, "P"]) -> RowsT:
        """Returns the rows at positions on the CPU, at least one, cut to the longest of them."""
        lengths = self.lengths[rows]
        kept = self.cut(int(lengths.max()))
        index = send(rows, self.device)
        # Not by [rows], whose gradient is added up in one thread.
        return kept.map(lambda tensor: tensor.index_select(0, index)).with_lengths(lengths)

    def __len__(self) -> int:
        return len(self.each)

    def __getitem__(self: RowsT, rows: Any) -> RowsT:
        # All rows are the same rows, and their lengths stay known.
        if isinstance(rows, slice):
            count = len(self)
            if rows.indices(count) == (0, count, 1):
                return self
        return self.map(lambda tensor: tensor[rows])

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.each.device

    def to(self: RowsT, device: torch.device | str, dtype: torch.dtype | None = None) -> RowsT:
        """Returns the rows on `device`, real-valued tensors as `dtype` unless it is None."""

        def moved(tensor: Tensor) -> Tensor:
            there = send(tensor, device)
            return there.to(dtype=dtype) if tensor.is_floating_point() else there

        return self.map(moved)


@dataclass(frozen=True)
class Pooled(Rows):
    """One vector, not normalised, for each of n images or texts."""

    values: Float[Tensor, "n d"]

    @override
    def map(self, change: Callable[..., Tensor], *others: Any) -> "Pooled":
        return Pooled(change(self.values, *(other.values for other in others)))

    @property
    @override
    def lengths(self) -> Int[Tensor, "n"]:
        return torch.zeros(len(self.values), dtype=torch.int64)


@dataclass(frozen=True)
class Tokens(Rows):
    """Tokens of n images or texts, real ones first.

    Attributes:
        values: Token states, zero where `mask` is False.
        mask: True where a token is real (for texts, start and end tokens are real).
        ids: Token ids, of word embeddings only.
        noted_lengths: The lengths on the CPU, None where they are not known there.
    """

    values: Float[Tensor, "n t w"]
    mask: Bool[Tensor, "n t"]
    ids: Int[Tensor, "n t"] | None = None
    noted_lengths: Int[Tensor, "n"] | None = None

    @staticmethod
    def full(values: Float[Tensor, "n t w"]) -> "Tokens":
        """Tokens without padding."""
        rows, length, _ = values.shape
        mask = torch.ones(rows, length, dtype=torch.bool, device=values.device)
        return Tokens(values, mask, noted_lengths=torch.full((rows,), length))

    def with_values(self, values: Float[Tensor, "n t _"]) -> "Tokens":
        """Other states of the same tokens, without ids."""
        return Tokens(values, self.mask, noted_lengths=self.noted_lengths)

    def masked(self, values: Float[Tensor, "n t _"]) -> "Tokens":
        """Other states of the same tokens, in float32, and zero where `mask` is False."""
        padding = ~self.mask[:, :, None]
        return self.with_values(values.float().masked_fill(padding, 0.0))

    def without_first(self, count: int) -> "Tokens":
        """Drops the first `count` tokens of each row, which are real."""
        rest = self.map(lambda tensor: tensor[:, count:])
        return rest.with_lengths(self.lengths - count)

    @override
    def map(self, change: Callable[..., Tensor], *others: Any) -> "Tokens":
        values = change(self.values, *(other.values for other in others))
        mask = change(self.mask, *(other.mask for other in others))
        ids = None if self.ids is None else change(self.ids, *(other.ids for other in others))
        return Tokens(values, mask, ids)

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Tokens":
        # Looked up before they move: a GPU would have to be waited for.
        lengths = self.lengths if self.mask.device.type == "cpu" else self.noted_lengths
        return super().to(device, dtype).with_lengths(lengths)

    @property
    @override
    def lengths(self) -> Int[Tensor, "n"]:
        return self.mask.sum(dim=1).cpu() if self.noted_lengths is None else self.noted_lengths

    @override
    def with_lengths(self, lengths: Int[Tensor, "n"] | None) -> "Tokens":
        return replace(self, noted_lengths=lengths)

    @property
    def cpu_mask(self) -> Bool[Tensor, "n t"]:
        """The mask on the CPU, made from the lengths."""
        return torch.arange(self.token_count) < self.lengths[:, None]

    @property
    @override
    def token_count(self) -> int:
        return self.mask.shape[1]

    @override
    def cut(self, length: int) -> "Tokens":
        if length >= self.token_count:
            return self
        return self.map(lambda x: x[:, :length])

    @override
    def padded(self, length: int) -> "Tokens":
        missing = length - self.token_count
        if not missing:
            return self
        # `pad` takes its numbers from the last dimension on; only the tokens get any.
        return self.map(lambda x: pad(x, (0, 0) * (x.ndim - 2) + (0, missing)))

    @property
    def word_ids(self) -> Int[Tensor, "n t"]:
        """The ids of word embeddings, which always have them."""
        assert self.ids is not None
        return self.ids


@dataclass(frozen=True)
class PooledTokens(Rows):
    """A vector and tokens for each of n images or texts."""

    pooled: Float[Tensor, "n d"]
    tokens: Tokens

    @override
    def map(self, change: Callable[..., Tensor], *others: Any) -> "PooledTokens":
        pooled = change(self.pooled, *(other.pooled for other in others))
        return PooledTokens(pooled, self.tokens.map(change, *(other.tokens for other in others)))

    @property
    @override
    def lengths(self) -> Int[Tensor, "n"]:
        return self.tokens.lengths

    @override
    def with_lengths(self, lengths: Int[Tensor, "n"] | None) -> "PooledTokens":
        return replace(self, tokens=self.tokens.with_lengths(lengths))

    @property
    @override
    def token_count(self) -> int:
        return self.tokens.token_count

    @override
    def cut(self, length: int) -> "PooledTokens":
        return replace(self, tokens=self.tokens.cut(length))

    @override
    def padded(self, length: int) -> "PooledTokens":
        return replace(self, tokens=self.tokens.padded(length))


Features = Pooled | Tokens


def concatenate(parts: Sequence[RowsT]) -> RowsT:
    """Stacks rows of one type; tokens are padded to the longest."""
    longest = max(part.token_count for part in parts)
    first, *others = (part.padded(longest) for part in parts)
    stacked = first.map(lambda *tensors: torch.cat(tensors), *others)
    lengths = torch.cat([part.lengths for part in parts])
    return stacked.with_lengths(lengths)


@dataclass(frozen=True)
class Embedded:
    """The normalised embeddings behind a dual adapter's scores, for objectives that use them.

    Attributes:
        scale: Factor on cosines, with gradient if it is trained.
        image_tokens, text_tokens: Patch and word tokens in the shared space, if needed.
    """

    image: Float[Tensor, "N d"]
    text: Float[Tensor, "M d"]
    scale: Float[Tensor, ""]
    image_tokens: Tokens | None = None
    text_tokens: Tokens | None = None


@dataclass(frozen=True)
class PhraseScores:
    """Training scores of N images against the K phrases of a batch's captions.

    Attributes:
        truth: True where the phrase is of a caption of the image, presumably false elsewhere.
        text: The normalised embeddings of the phrases.
        foils: True where the phrase was made from one of the image so that it is false of it.
    """

    values: Float[Tensor, "N K"]
    truth: Bool[Tensor, "N K"]
    text: Float[Tensor, "K d"]
    foils: Bool[Tensor, "N K"]


@dataclass(frozen=True)
class Scores:
    """Training scores of N images against M texts, and which of them were computed.

    Attributes:
        values: `values[i, j]` is the score of image i and text j; 0 where not computed.
        computed: True where `values` holds a score.
        embedded: The embeddings, if the adapter is dual.
        reference: Scores of the frozen backbone itself, if an objective needs them.
        teacher: Scores of another trained model, of the pairs that an objective needs, if any.
        phrases: Scores of the same images and phrases, if an objective needs them.
        average: Embeddings by a moving average of the trained weights, likewise.
        noted_computed: `computed` on the CPU, None where it is not known there.
    """

    values: Float[Tensor, "N M"]
    computed: Bool[Tensor, "N M"]
    embedded: Embedded | None = None
    reference: Float[Tensor, "N M"] | None = None
    teacher: "Scores | None" = None
    phrases: PhraseScores | None = None
    average: Embedded | None = None
    noted_computed: Bool[Tensor, "N M"] | None = None

    @staticmethod
    def full(values: Float[Tensor, "N M"], embedded: Embedded | None = None) -> "Scores":
        """Scores of all pairs."""
        known = torch.ones((), dtype=torch.bool).expand(values.shape)  # takes no memory
        computed = torch.ones_like(values, dtype=torch.bool)
        return Scores(values, computed, embedded, noted_computed=known)

    @property
    def cpu_computed(self) -> Bool[Tensor, "N M"]:
        """`computed` on the CPU; where it is known there, no GPU is waited for."""
        return self.computed.cpu() if self.noted_computed is None else self.noted_computed


@dataclass(frozen=True)
class ScoreShard:
    """The scores that one rank holds of a global batch of N images and M texts.

    Attributes:
        rows: Scores of the rank's n images against all texts, (n, M).
        columns: Scores of all images against the rank's m texts, (N, m).
        row_start: Position of the rank's first image among the N.
        column_start: Position of the rank's first text among the M.
        contrast: The contrastive scores of the same batch, if a joint adapter gives them.
    """

    rows: Scores
    row_targets: Targets
    columns: Scores
    column_targets: Targets
    row_start: int = 0
    column_start: int = 0
    contrast: "ScoreShard | None" = None
