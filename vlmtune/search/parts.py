"""Some images of an index on disk: a folder that is written once and never changes.

In: encoded images by the digest of their content. Out: rows of them, read by memory mapping.
Never: a half-written folder, a pickle, or a row that was not checked.

A part is a folder with

    ids.json      the n digests
    vectors.bin   float32 (n, d), normalised; empty where a shortlist has them
    pooled.bin    float32 (n, g), what a joint adapter keeps beside tokens; if it keeps anything
    tokens.bin    int8 (sum t, w), the prepared tokens of all images one after another
    scales.bin    float32 (sum t), the scale of each token
    offsets.bin   int64 (n + 1), where the tokens of each image begin
    meta.json     sizes, sha256 of each file, versions

Only a joint adapter has the four files in the middle.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor
from typing_extensions import TypedDict

from vlmtune.features.store import as_bytes
from vlmtune.search.quantise import quantise, restore
from vlmtune.storage.files import Count
from vlmtune.storage.folder import DamagedError, new_folder, read_meta, read_names
from vlmtune.types import Pooled, PooledTokens, Rows, Tokens

KINDS: dict[str, type[Rows]] = {x.__name__: x for x in (Pooled, Tokens, PooledTokens)}


class _Facts(TypedDict):
    """What `meta.json` says of the numbers: those of an image, by their file; 0 for no file."""

    rows: Count
    kind: Literal["Pooled", "Tokens", "PooledTokens"] | None
    width: Count
    pooled: Count
    tokens: Count


@dataclass(frozen=True)
class Encoded:
    """Some encoded images.

    Attributes:
        ids: Digests of their content.
        vectors: Their normalised vectors; no numbers where a shortlist has them.
        prepared: What a joint adapter computed from them; None for a dual adapter.
    """

    ids: Sequence[str]
    vectors: Float[Tensor, "n d"]
    prepared: Rows | None


def write_part(path: Path, key: Mapping[str, Any], chunks: Iterable[Encoded]) -> list[str]:
    """Writes a part whole or not at all; returns its ids.

    Without an image there is no part.
    """
    # The first chunk says what the rows have; a folder is only made if there is one.
    waiting = iter(chunks)
    first = next(waiting, None)
    if first is None:
        return []
    with new_folder(path) as writer:
        ids = []
        lengths = [torch.zeros(1, dtype=torch.int64)]
        facts = _facts(first)
        for chunk in chain([first], waiting):
            ids += chunk.ids
            writer.append("vectors.bin", as_bytes(chunk.vectors))
            pooled, tokens = _split(chunk.prepared)
            if pooled is not None and pooled.shape[1]:
                writer.append("pooled.bin", as_bytes(pooled))
            if tokens is not None:
                # Without padding: an image has as many rows as it has tokens.
                unpadded = tokens.values[tokens.mask]
                numbers, scales = quantise(unpadded)
                writer.append("tokens.bin", as_bytes(numbers))
                writer.append("scales.bin", as_bytes(scales))
                lengths.append(tokens.lengths)
        if facts["tokens"]:
            offsets = torch.cat(lengths).cumsum(0)
            writer.append("offsets.bin", as_bytes(offsets))
        writer.append("ids.json", json.dumps(ids).encode())
        writer.finish(key, rows=len(ids), **facts)
    return ids


class Part:
    """An opened part.

    Attributes:
        rows: The number of images.
        vectors: Their vectors, mapped into memory.
        kind: What a joint adapter prepared of them; None for a dual adapter.
        pooled: The vectors of these, mapped into memory.

    Raises:
        DamagedError: A file is missing, truncated, changed or of another key.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._meta = read_meta(self.folder, key, ("ids.json", "vectors.bin"), _Facts)
        kind = self._meta["kind"]
        self.kind = None if kind is None else KINDS[kind]
        rows = self.rows = self._meta["rows"]
        if len(self.ids) != rows or rows < 1:
            raise DamagedError("meta.json contradicts itself")
        self.vectors = self._rows("vectors.bin", self._meta["width"])
        self.pooled = self._rows("pooled.bin", self._meta["pooled"])
        # Offsets that contradict themselves would read tokens of other images.
        width = self._meta["tokens"]
        if width:
            self._offsets = self._mapped("offsets.bin", torch.int64, (rows + 1,))
            first = int(self._offsets[0])
            total = int(self._offsets[-1])
            lengths = self._offsets.diff()
            if first != 0 or bool((lengths < 1).any()):
                raise DamagedError("offsets.bin contradicts itself")
            self._tokens = self._mapped("tokens.bin", torch.int8, (total, width))
            self._scales = self._mapped("scales.bin", torch.float32, (total,))
            self._equal = bool((lengths == total // rows).all())

    @property
    def ids(self) -> tuple[str, ...]:
        """Digests of the images, read at each call: those of a million take 120 MB."""
        return read_names(self.folder, "ids.json")

    def _rows(self, name: str, width: int) -> Float[Tensor, "n width"]:
        """A row of numbers for each image."""
        if not width:  # such a file was never written
            return torch.zeros(self.rows, 0)
        return self._mapped(name, torch.float32, (self.rows, width))

    def _mapped(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        return mapped(self.folder, self._meta, name, dtype, shape)

    def tokens(
        self, rows: Int[Tensor, "k"]
    ) -> tuple[Int8[Tensor, "t w"], Float[Tensor, "t"], Int[Tensor, "k"]]:
        """Tokens of the images in `rows` one after another, their scales, and how many each has."""
        # Both ways by index_select: [chosen] takes ten times as long.
        if self._equal:  # images have one number of tokens: whole images are copied at once
            length = len(self._tokens) // self.rows
            by_image = self._tokens.unflatten(0, (-1, length))
            scales_by_image = self._scales.unflatten(0, (-1, length))
            numbers = by_image.index_select(0, rows).flatten(0, 1)
            scales = scales_by_image.index_select(0, rows).flatten(0, 1)
            return numbers, scales, torch.full_like(rows, length)
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        result_starts = lengths.cumsum(0) - lengths
        # From a token's position in the result to its position in the file.
        shift = (starts - result_starts).repeat_interleave(lengths)
        positions = torch.arange(len(shift)) + shift
        numbers = self._tokens.index_select(0, positions)
        scales = self._scales.index_select(0, positions)
        return numbers, scales, lengths


def mapped(
    folder: Path, meta: Mapping[str, Any], name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    """Maps a file into memory that `meta.json` lists and whose shape it states."""
    count = torch.Size(shape).numel()
    size = count * dtype.itemsize
    entry = meta["files"].get(name)
    if entry is None or entry["bytes"] != size or min(shape) < 1:
        raise DamagedError(f"{name} has another size than meta.json says")
    # Not shared: a stray write could otherwise reach the file.
    flat = torch.from_file(str(folder / name), shared=False, size=count, dtype=dtype)
    return flat.view(shape)


def read_prepared(chosen: Sequence[tuple[Part, Int[Tensor, "_"]]]) -> Rows:
    """Returns what the joint adapter prepared of rows of parts, one part after another.

    Tokens are those of `quantise`, times their scales. A dual adapter has prepared nothing.
    """
    kind = chosen[0][0].kind
    assert kind is not None, "a dual adapter scores vectors"
    pooled = torch.cat([part.pooled[rows] for part, rows in chosen])
    if kind is Pooled:
        return Pooled(pooled)
    numbers, scales, lengths = [], [], []
    for part, rows in chosen:
        part_numbers, part_scales, part_lengths = part.tokens(rows)
        numbers.append(part_numbers)
        scales.append(part_scales)
        lengths.append(part_lengths)
    # Bytes are stacked, as they are a quarter of what they become.
    values = restore(torch.cat(numbers), torch.cat(scales))
    token_counts = torch.cat(lengths)
    # Without padding the rows only get another shape; the padding of others is 0.
    mask = torch.arange(int(token_counts.max())) < token_counts[:, None]
    if bool(mask.all()):
        values = values.unflatten(0, mask.shape)
    else:
        padded = values.new_zeros(*mask.shape, values.shape[1])
        padded[mask] = values
        values = padded
    tokens = Tokens(values, mask)
    return tokens if kind is Tokens else PooledTokens(pooled, tokens)


def _facts(first: Encoded) -> dict[str, Any]:
    """What `meta.json` says of the rows: their kind and widths."""
    facts: dict[str, Any] = {
        "kind": None,
        "width": first.vectors.shape[1],
        "pooled": 0,
        "tokens": 0,
    }
    if first.prepared is not None:
        # The name of the class: `KINDS` leads back to it.
        facts["kind"] = type(first.prepared).__name__
    pooled, tokens = _split(first.prepared)
    if pooled is not None:
        facts["pooled"] = pooled.shape[1]
    if tokens is not None:
        facts["tokens"] = tokens.values.shape[2]
    return facts


def _split(prepared: Rows | None) -> tuple[Tensor | None, Tokens | None]:
    """The vectors and the tokens of prepared images."""
    if prepared is None:
        return None, None
    if isinstance(prepared, Pooled):
        return prepared.values, None
    if isinstance(prepared, Tokens):
        return None, prepared
    assert isinstance(prepared, PooledTokens)
    return prepared.pooled, prepared.tokens
