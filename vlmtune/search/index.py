"""An opened index. In: its folder, then captions, or images. Out: the files that fit them best.

Never: a file of an image read, a vector approximated, or anything unpickled.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

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
from vlmtune.types import Pooled, Rows

ENCODED = 64  # captions encoded at a time
COMPARED = 2**14  # images compared with an image at a time
SCORED = 128  # images scored at a time; more would leave the processor's cache


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
        paths: The files, in the order in which they were indexed.
        model: The model.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], encoder: IndexEncoder) -> None:
        self.folder = folder
        self.paths = tuple(paths)
        self.model = encoder.model
        self._encoder = encoder
        self._parts: list[Part] = []
        self._rows: list[tuple[int, int]] = []  # part, and row in it, of each file
        self._shortlist: Shortlist | None = None
        self._faiss: Any = None

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
        faiss = _faiss()
        index = cls(folder, list(map(Path, images)), encoder)
        positions: dict[str, tuple[int, int]] = {}
        for number, name in enumerate(listed["parts"]):
            with undamaged(folder, name):
                part = Part(folder / name, part_key(identity))
            index._parts.append(part)
            for row, digest in enumerate(part.ids):
                positions.setdefault(digest, (number, row))
        # A list that names what no part holds was edited, or a part was replaced.
        missing = [path for path, digest in images.items() if digest not in positions]
        if missing or not images:
            got = f"no row for {missing[0]}" if missing else "no images"
            raise UserError(f"expected {EXPECTED} in {folder}, it has {got}: {AGAIN}")
        # Files of one content share a row.
        index._rows = [positions[digest] for digest in images.values()]
        name = listed["shortlist"]
        if name is not None:
            with undamaged(folder, name):
                key = shortlist_key(identity, listed["parts"])
                index._shortlist = Shortlist(folder / name, key)
        vectors = index._recalled()
        index._faiss = faiss.IndexFlatIP(vectors.shape[1])
        index._faiss.add(vectors.numpy())
        return index

    def __len__(self) -> int:
        return len(self.paths)

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
        count = min(max(top, recall), len(self))
        results = []
        with self._encoder.evaluation():
            for start in range(0, len(captions), ENCODED):
                some = captions[start : start + ENCODED]
                vectors, texts = self._encoder.encode_text(some)
                if self._shortlist is not None:
                    vectors = self._shortlist.project(vectors)
                # An exhaustive search: no approximation can lose the best file.
                _, recalled = self._faiss.search(vectors.numpy(), count)
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
            query = self._compared(position, 1)
        parts = []
        for start in range(0, len(self), COMPARED):
            count = min(COMPARED, len(self) - start)
            vectors = self._compared(start, count)
            parts.append(cosine_similarity(query, vectors))
        cosines = torch.cat(parts)
        hits = []
        for file in cosines.argsort(descending=True, stable=True)[: top + 1].tolist():
            # One more than `top`, as the file itself may be among them.
            if file != position:
                hits.append(Hit(self.paths[file], float(cosines[file])))
        return hits[:top]

    def _compared(self, start: int, count: int) -> Float[Tensor, "count d"]:
        """The vectors that some files, one after another, are recalled by."""
        return torch.from_numpy(self._faiss.reconstruct_n(start, count))

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
        hits = []
        for start in range(0, len(chosen), SCORED):
            # In pieces that stay in the cache of the processor.
            files = chosen[start : start + SCORED]
            images = self._images(files)
            scores = self._encoder.score(text, images).tolist()
            paths = [self.paths[file] for file in files]
            hits += map(Hit, paths, scores)
        # Of equal scores the file that was indexed first comes first: sorting is stable.
        hits.sort(key=lambda hit: -hit.score)
        return hits[:top]

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
        sizes = [len(part.ids) for part in self._parts]
        starts = [0, *accumulate(sizes)]
        rows = [starts[part] + row for part, row in self._rows]
        return self._shortlist.vectors[rows]

    def _vectors(self, files: Sequence[int]) -> Float[Tensor, "k d"]:
        chosen, order = self._by_part(files)
        vectors = torch.cat([part.vectors[rows] for part, rows in chosen])
        return vectors if order is None else vectors[order]

    def _by_part(
        self, files: Sequence[int]
    ) -> tuple[list[tuple[Part, list[int]]], Int[Tensor, "k"] | None]:
        """The rows of some files by part, and where each file is among these; None for in order."""
        part_of = torch.tensor([self._rows[file][0] for file in files])
        order = part_of.argsort(stable=True)
        rows_of: dict[int, list[int]] = {}
        for position in order.tolist():
            part, row = self._rows[files[position]]
            rows_of.setdefault(part, []).append(row)
        chosen = [(self._parts[part], rows) for part, rows in rows_of.items()]
        # Files in the order of their parts need no copy.
        if bool((part_of.diff() >= 0).all()):
            return chosen, None
        return chosen, order.argsort()


def _faiss() -> Any:
    return imported("faiss", "to search", "pip install 'vlmtune[search]'")
