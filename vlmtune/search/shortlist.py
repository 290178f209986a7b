r"""Short vectors by which the images of a joint adapter are recalled.

In: the parts of an index and the adapter's recall vectors. Out: d numbers of each image, and the
matrix that brings a caption's vector to d numbers. Never: tokens changed, or an image read.

Recall vectors (`JointAdapter.recall_image`) may have many thousand numbers. Their products hardly
change, but for a constant of each caption, when both sides are projected on the principal
directions of a sample of images: $x^\top y \approx (B^\top x)^\top (B^\top y) + c_y$.

A shortlist is a folder with

    basis.bin     float32 (D, d), B with orthonormal columns
    vectors.bin   float32 (n, d), the projected vectors of all images, part after part
    meta.json     sizes, sha256 of each file, versions
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import TypedDict

from vlmtune.features.store import as_bytes
from vlmtune.search.encoder import IndexEncoder
from vlmtune.search.parts import Part, mapped, read_prepared
from vlmtune.storage.files import PositiveCount
from vlmtune.storage.folder import new_folder, read_meta
from vlmtune.storage.progress import progress
from vlmtune.types import Rows

WIDTH = 256  # d at most
SAMPLE = 1024  # images that B is computed from, at most
CHUNK = 128  # images projected at a time


class _Facts(TypedDict):
    """What `meta.json` says of the numbers: n, D, d, and the n at which B was computed."""

    rows: PositiveCount
    recalled: PositiveCount
    width: PositiveCount
    fitted: PositiveCount


class Shortlist:
    """An opened shortlist.

    Attributes:
        basis: B.
        vectors: The projected vectors, mapped into memory.
        fitted: The number of images when B was computed.

    Raises:
        DamagedError: A file is missing, truncated, changed or of another key.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        meta = read_meta(folder, key, ("basis.bin", "vectors.bin"), _Facts)
        width = meta["width"]
        # The shapes come from meta.json; `mapped` compares them with the sizes of the files.
        basis_shape = (meta["recalled"], width)
        vectors_shape = (meta["rows"], width)
        self.basis = mapped(folder, meta, "basis.bin", torch.float32, basis_shape)
        self.vectors = mapped(folder, meta, "vectors.bin", torch.float32, vectors_shape)
        self.fitted = meta["fitted"]

    def project(self, recalled: Float[Tensor, "m D"]) -> Float[Tensor, "m d"]:
        """Projects the recall vectors of captions."""
        return recalled @ self.basis


def write_shortlist(
    path: Path,
    key: Mapping[str, Any],
    parts: Sequence[Part],
    encoder: IndexEncoder,
    before: Shortlist | None = None,
) -> None:
    """Writes the shortlist of all images of `parts`, whole or not at all.

    B is computed anew until it has seen `SAMPLE` images, and whenever their number has doubled
    since. In between, new images are projected on the B of `before`, whose rows are copied.
    """
    count = sum(part.rows for part in parts)
    if before is None or before.fitted < SAMPLE or count >= 2 * before.fitted:
        # Every k-th image: the images of one folder look alike.
        step = -(-count // SAMPLE)
        sample = _prepared(parts, range(0, count, step))
        recalled = torch.cat([encoder.recall_images(prepared) for prepared in sample])
        basis = principal_directions(recalled, WIDTH)
        fitted = count
        copied = 0
    else:
        basis = before.basis
        fitted = before.fitted
        copied = len(before.vectors)
    with new_folder(path) as writer:
        writer.append("basis.bin", as_bytes(basis))
        if before is not None and copied:
            writer.append("vectors.bin", as_bytes(before.vectors))
        with progress("projecting images", count - copied) as advance:
            for prepared in _prepared(parts, range(copied, count)):
                vectors = encoder.recall_images(prepared) @ basis
                writer.append("vectors.bin", as_bytes(vectors))
                advance(len(vectors))
        writer.finish(
            key,
            rows=count,
            recalled=len(basis),
            width=basis.shape[1],
            fitted=fitted,
        )


def principal_directions(rows: Float[Tensor, "s D"], most: int) -> Float[Tensor, "D d"]:
    r"""The eigenvectors of the covariance matrix with the `most` largest eigenvalues above 0.

    They come from the s x s matrix of products, as D may be large.

    Example:
        >>> principal_directions(torch.tensor([[3.0, 5.0, 4.0], [-3.0, 5.0, -4.0]]), 2).abs()
        tensor([[0.6000],
                [0.0000],
                [0.8000]])
    """
    rows = rows - rows.mean(dim=0)
    products = (rows @ rows.T).double()
    values, vectors = torch.linalg.eigh(products)
    # `eigh` sorts upwards.
    largest = values.flip(0)[:most]
    # Rounding alone gives the directions that are left out.
    is_above_0 = largest > 1e-6 * largest[0]
    count = max(1, int(is_above_0.sum()))
    best = vectors.flip(1)[:, :count].to(rows.dtype)
    # If v is an eigenvector of X Xᵀ, then Xᵀ v is an eigenvector of XᵀX.
    return normalize(rows.T @ best, dim=0)


def _prepared(parts: Sequence[Part], rows: Sequence[int]) -> Iterator[Rows]:
    """What the adapter prepared of some rows of all parts, in ascending order, chunk by chunk."""
    start = 0
    for part in parts:
        end = start + part.rows
        # `rows` ascend, so those of a part are a slice.
        inside = rows[bisect_left(rows, start) : bisect_left(rows, end)]
        for first in range(0, len(inside), CHUNK):
            chunk = torch.tensor(inside[first : first + CHUNK])
            yield read_prepared([(part, chunk - start)])
        start = end
