"""An opened index. In: its folder, then captions, or images. Out: the files that fit them best.

Never: a file of an image read, a vector approximated, or anything unpickled.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vlmtune.errors import UserError, imported
from vlmtune.model import load
from vlmtune.model.model import Model
from vlmtune.search.encoder import IndexEncoder
from vlmtune.search.files import (
    AGAIN,
    EXPECTED,
    Listed,
    part_key,
    read_list,
    shortlist_key,
    undamaged,
)
from vlmtune.search.parts import Part, read_prepared
from vlmtune.search.shortlist import Shortlist
from vlmtune.storage.names import Names
from vlmtune.types import Pooled, Rows

ENCODED = 64  # captions encoded at a time
COMPARED = 2**14  # images compared with an image at a time
SCORED = 128  # images scored at a time; more would leave the processor's cache
DIGEST = "S64"  # numpy's type of a digest in hex, as bytes: a million in 64 MB


class Hit(NamedTuple):
    """A file that was found."""

    path: Path
    score: float


class Index:
    """Image files that a model encoded, ready for captions.

    faiss finds the images whose vectors have the largest product with the caption's, exactly.
    The model scores these: a dual adapter by their vectors, a joint adapter by their stored tokens.

    Attributes:
        folder: The folder.
        names: The files, in the order in which they were indexed.
        model: The model.
    """

    def __init__(self, folder: Path, names: Iterable[str], encoder: IndexEncoder) -> None:
        self.folder = folder
        self.names = Names(names)
        self.model = encoder.model
        self._encoder = encoder
        self._parts: list[Part] = []
        # Rows are numbered through all parts: those of part p begin at `_starts[p]`.
        self._starts = torch.zeros(1, dtype=torch.int64)
        self._rows = self._starts  # of each file
        self._shortlist: Shortlist | None = None
        self._recall_vectors = torch.zeros(0, 0)  # of each file

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The files as paths, which take ten times the memory of `names`."""
        return tuple(map(Path, self.names))

    @classmethod
    def open(
        cls,
        folder: str | Path,
        model: Model | None = None,
        device: torch.device | str | None = None,
        packages: Sequence[str] = (),
        batch_size: int = 256,
        pretrained: str | None = None,
    ) -> "Index":
        """Opens the index in `folder` with its model.

        Args:
            folder: What `build_index` or `vlmtune index` wrote.
            model: The model; by default `vlmtune.load` loads it by the name in the index, so open
                only indexes of people you trust, or name the model.
            device: Where to compute, if the model is loaded here.
            packages: Packages besides vlmtune that the model may import classes from, if it is
                loaded here.
            batch_size: Captions encoded at a time, if the model is loaded here.
            pretrained: The base model of the model, if it has moved and the model is loaded here.

        Raises:
            UserError: There is no index, it is damaged, the model has other weights, or faiss is
                not installed.
        """
        folder = Path(folder)
        # Now, as loading the model may take minutes.
        _faiss()
        listed = read_list(folder)
        source = listed["model"]
        if model is None:
            model = load(
                source["name"],
                pretrained or source["pretrained"],
                device=device,
                architecture=source["architecture"],
                packages=packages,
                batch_size=batch_size,
            )
        # Vectors of another model have no meaning beside those that are stored.
        encoder = IndexEncoder(model)
        if encoder.identity() != source["identity"]:
            raise UserError(
                f"expected the model that encoded the index {folder}, {source['name']}, got other "
                "weights or preprocessing: name that model, or build the index again"
            )
        while True:
            try:
                return cls._read(folder, listed, encoder)
            except UserError:
                before, listed = listed, read_list(folder)
                if listed == before:
                    raise
                # It has grown meanwhile, and a folder of the list of before was removed.

    @classmethod
    def _read(cls, folder: Path, listed: Listed, encoder: IndexEncoder) -> "Index":
        """Opens the folders of a list."""
        identity = listed["model"]["identity"]
        images = listed["images"]
        index = cls(folder, images, encoder)
        ids = []
        for name in listed["parts"]:
            with undamaged(folder, name):
                part = Part(folder / name, part_key(identity))
                ids.append(np.array(part.ids, DIGEST))
            index._parts.append(part)
        # Sorted digests are found by bisection; the last is above all of them.
        stored = np.concatenate([*ids, [b"~"]])
        order = np.argsort(stored, kind="stable")
        # Files of one content share a row.
        wanted = np.fromiter(images.values(), DIGEST, len(images))
        rows = order[np.searchsorted(stored, wanted, sorter=order)]
        missing = np.flatnonzero(stored[rows] != wanted).tolist()
        # A list that names what no part holds was edited, or a part was replaced.
        if missing or not images:
            got = f"no row for {index.names[missing[0]]}" if images else "no images"
            raise UserError(f"expected {EXPECTED} in {folder}, it has {got}: {AGAIN}")
        index._rows = torch.from_numpy(rows)
        index._starts = torch.tensor([0, *map(len, ids)]).cumsum(0)
        name = listed["shortlist"]
        if name is not None:
            with undamaged(folder, name):
                key = shortlist_key(identity, listed["parts"])
                index._shortlist = Shortlist(folder / name, key)
        index._recall_vectors = index._recalled()
        return index

    def __len__(self) -> int:
        return len(self.names)

    def search(self, caption: str, top: int = 10, recall: int = 100) -> list[Hit]:
        """Returns the `top` files with the highest scores, best first; ties keep order.

        With a dual adapter these are the best of all files. A joint adapter scores the `recall`
        files that its recall vectors find first, else the embeddings of its backbone, at least
        `top`.
        """
        return self.search_all([caption], top, recall)[0]

    def search_all(
        self, captions: Sequence[str], top: int = 10, recall: int = 100
    ) -> list[list[Hit]]:
        """Returns what `search` finds for each caption, and encodes many captions at once.

        A caption's score may differ in its last digits, as another batch rounds differently.
        """
        faiss = _faiss()
        count = min(max(top, recall), len(self))
        stored = self._recall_vectors.numpy()
        results = []
        with self._encoder.evaluation():
            for start in range(0, len(captions), ENCODED):
                some = captions[start : start + ENCODED]
                vectors, texts = self._encoder.encode_text(some)
                if self._shortlist is not None:
                    vectors = self._shortlist.project(vectors)
                # An exhaustive search: no approximation can lose the best file.
                queries = vectors.numpy()
                _, recalled = faiss.knn(queries, stored, count, faiss.METRIC_INNER_PRODUCT)
                for i, files in enumerate(recalled.tolist()):
                    # In the order of the index, so that ties keep it, and reads go forwards.
                    text = texts[i : i + 1].trimmed()
                    results.append(self._best(text, sorted(files), top))
        return results

    def similar(self, image: int | Image.Image, top: int = 10) -> list[Hit]:
        """Returns the `top` files most like an image, best first; a file is not like itself.

        The score is the cosine of the vectors that images are recalled by.

        Args:
            image: Position of a file in `paths`, or an RGB picture, which is encoded.
            top: Files to return.
        """
        position = -1  # a picture is none of the files
        if isinstance(image, Image.Image):
            query = self._recall_vector(image)
        else:
            position = range(len(self))[image]
            query = self._recall_vectors[position : position + 1]
        parts = []
        for vectors in self._recall_vectors.split(COMPARED):
            parts.append(cosine_similarity(query, vectors))
        cosines = torch.cat(parts)
        hits = []
        for file in cosines.argsort(descending=True, stable=True)[: top + 1].tolist():
            # One more than `top`, as the file itself may be among them.
            if file != position:
                hits.append(self._hit(file, float(cosines[file])))
        return hits[:top]

    def _recall_vector(self, image: Image.Image) -> Float[Tensor, "1 d"]:
        """The vector that a picture is recalled by."""
        pixels = self._encoder.backbone.preprocess(image)
        vector, prepared = self._encoder.encode_images(pixels[None])
        if self._shortlist is None or prepared is None:
            return vector
        recalled = self._encoder.recall_images(prepared)
        return self._shortlist.project(recalled)

    def too_long(self, captions: Sequence[str]) -> list[str]:
        """Returns the captions that are longer than the model reads; it truncates them."""
        return self._encoder.backbone.too_long(captions)

    def _best(self, text: Rows, chosen: list[int], top: int) -> list[Hit]:
        """The `top` of the chosen files for a caption."""
        scores: list[float] = []
        for start in range(0, len(chosen), SCORED):
            # In pieces that stay in the cache of the processor.
            images = self._images(chosen[start : start + SCORED])
            scores += self._encoder.score(text, images).tolist()
        # Of equal scores the file that was indexed first comes first: sorting is stable.
        best = sorted(range(len(chosen)), key=lambda i: -scores[i])
        return [self._hit(chosen[i], scores[i]) for i in best[:top]]

    def _hit(self, file: int, score: float) -> Hit:
        return Hit(Path(self.names[file]), score)

    def _images(self, files: Sequence[int]) -> Rows:
        """What the adapter scores of some files: prepared images, or vectors."""
        if self._encoder.joint is None:
            return Pooled(self._vectors(files))
        chosen, order = self._by_part(files)
        rows = read_prepared(chosen)
        return rows if order is None else rows[order]

    def _recalled(self) -> Float[Tensor, "n d"]:
        """The vectors that images are recalled by."""
        if self._shortlist is None:
            return self._vectors(range(len(self)))
        # A shortlist has the rows of all parts one after another.
        return self._shortlist.vectors.index_select(0, self._rows)

    def _vectors(self, files: Sequence[int]) -> Float[Tensor, "k d"]:
        chosen, order = self._by_part(files)
        vectors = torch.cat([part.vectors[rows] for part, rows in chosen])
        return vectors if order is None else vectors[order]

    def _by_part(
        self, files: Sequence[int]
    ) -> tuple[list[tuple[Part, Int[Tensor, "_"]]], Int[Tensor, "k"] | None]:
        """The rows of some files by part, and where each file is among these; None for in order."""
        rows = self._rows[torch.tensor(files)]
        part_of = torch.bucketize(rows, self._starts, right=True) - 1
        order = part_of.argsort(stable=True)
        numbers, counts = part_of.unique(return_counts=True)
        of_parts = rows[order].split(counts.tolist())
        chosen = []
        for number, rows_of_part in zip(numbers.tolist(), of_parts, strict=True):
            chosen.append((self._parts[number], rows_of_part - self._starts[number]))
        # Files in the order of their parts need no copy.
        if bool((part_of.diff() >= 0).all()):
            return chosen, None
        return chosen, order.argsort()


def _faiss() -> Any:
    return imported("faiss", "to search", "pip install 'vlmtune[search]'")
