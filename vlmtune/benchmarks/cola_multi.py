"""Cola, multi-object queries: which of two images is the caption's, when words change places.

File: a JSON list of `[image_1, caption_1, image_2, caption_2]`; an image is a URL or path of which
only the last part, its file name, is used. The released list has 210 items over 218 Visual Genome
images. Source: Ray et al. 2023, sections 3 and 5.1.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from urllib.parse import urlsplit

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, distinct_pairs, find_images, read_json
from vlmtune.errors import UserError
from vlmtune.metrics.intervals import proportion
from vlmtune.metrics.pairs import (
    GROUP_CHANCE,
    IMAGE_CHANCE,
    TEXT_CHANCE,
    group_wins,
    image_wins,
    text_wins,
)
from vlmtune.types import Example, ImageRef, Result

SHOWN = 4  # captions of each kind, right and wrong, in the gallery


@dataclass(frozen=True)
class _Items:
    """The distinct images and captions, for each item the positions of its two of each, and pairs.

    `where[n, i, j]` is the place of image i and caption j of item n among the pairs.
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    rows: Int[Tensor, "n 2"]
    columns: Int[Tensor, "n 2"]
    pairs: Int[Tensor, "P 2"]
    where: Int[Tensor, "n 2 2"]


class ColaMulti(Benchmark):
    """Accuracy over pairs of images that share objects and attributes, bound differently.

    An item is right where both captions prefer their image, `f(I,M) > f(I',M)` and
    `f(I',M') > f(I,M')`; a tie is wrong. `text_accuracy` asks the same of the images, and
    `group_accuracy` both (Winoground's text and group score; not part of Cola).

    Args:
        path: The JSON list.
        images: The folder with the image files.
        name: Name in reports, unique within a run.
        limit: Evaluate only the first so many items.

    Raises:
        UserError: `limit` is below 1.
    """

    version: ClassVar[str] = "1"
    primary: str = "accuracy"
    citation: ClassVar[str] = "Ray et al. 2023, Cola, section 5.1 (multi-object accuracy)"

    def __init__(
        self, path: str, images: str, name: str = "cola_multi", limit: int | None = None
    ) -> None:
        if limit is not None and limit < 1:
            raise UserError(f"expected a limit of at least 1, got {limit}: leave it out for all")
        self.path = Path(path)
        self.folder = Path(images)
        self.name = name
        self.limit = limit
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "ColaMulti":
        """Three items; two of them share an image and a caption."""
        files = {}
        for i, colour in enumerate(("red", "green", "blue", "yellow", "white")):
            files[i] = f"https://example.org/vg/{i}.png"
            Image.new("RGB", (8, 8), colour).save(folder / f"{i}.png")
        rows = [
            [files[0], "red cup on blue box", files[1], "blue cup on red box"],
            [files[0], "red cup on blue box", files[2], "blue box on red cup"],
            [files[3], "old man by young tree", files[4], "young man by old tree"],
        ]
        path = folder / "cola_multi.json"
        path.write_text(json.dumps(rows), encoding="utf-8")
        return cls(str(path), str(folder))

    def load(self) -> None:
        """Reads the list and finds the images; calling it again does nothing.

        Raises:
            UserError: The file is not such a list, or an image is missing.
        """
        if self._items is None:
            self._items = self._read()

    def images(self) -> tuple[ImageRef, ...]:
        """The distinct images, in order of first appearance."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions, in order of first appearance."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"]:
        """The four pairs of each item."""
        return self._loaded().pairs

    def truth(self) -> Bool[Tensor, "P"]:
        """Caption i of an item is true of image i."""
        items = self._loaded()
        truth = torch.zeros(len(items.pairs), dtype=torch.bool)
        truth[items.where.diagonal(dim1=1, dim2=2)] = True
        return truth

    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        """Counts the items that are right."""
        values = scores[self._loaded().where]
        wins = image_wins(values)
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics={
                "accuracy": proportion(wins, IMAGE_CHANCE),
                "text_accuracy": proportion(text_wins(values), TEXT_CHANCE),
                "group_accuracy": proportion(group_wins(values), GROUP_CHANCE),
            },
            examples=self._examples(values),
            citation=self.citation,
            outcomes=tuple(wins.double().tolist()),
        )

    def _examples(self, values: Float[Tensor, "n 2 2"]) -> tuple[Example, ...]:
        """The first right and the first wrong captions, the better scored image first."""
        items = self._loaded()
        right: list[Example] = []
        wrong: list[Example] = []
        seen = set()
        for item, rows, columns in zip(values, items.rows, items.columns, strict=True):
            for own in (0, 1):
                column = int(columns[own])
                correct = bool(item[own, own] > item[1 - own, own])
                kind = right if correct else wrong
                if column in seen or len(kind) == SHOWN:
                    continue
                seen.add(column)
                first = own if correct else 1 - own
                order = (first, 1 - first)
                kind.append(
                    Example(
                        query=items.texts[column],
                        images=tuple(items.images[int(rows[i])] for i in order),
                        scores=tuple(float(item[i, own]) for i in order),
                        true=tuple(i == own for i in order),
                        correct=correct,
                    )
                )
        return (*right, *wrong)

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        wanted = "a JSON list of [image_1, caption_1, image_2, caption_2]"
        listed = read_json(self.path, wanted)
        if not isinstance(listed, list) or not listed:
            raise UserError(f"expected {wanted} in {self.path}, got no list or an empty one")
        listed = listed[: self.limit]
        for i, row in enumerate(listed):
            if reason := _fault(row):
                raise UserError(
                    f"expected {wanted} in {self.path}, got item {i} with {reason}: "
                    "download the file again"
                )
        images = [(_file_name(row[0]), _file_name(row[2])) for row in listed]
        texts = [(row[1], row[3]) for row in listed]
        names = tuple(dict.fromkeys(name for pair in images for name in pair))
        captions = tuple(dict.fromkeys(text for pair in texts for text in pair))
        row_of = {name: i for i, name in enumerate(names)}
        column_of = {text: j for j, text in enumerate(captions)}
        rows = torch.tensor([[row_of[name] for name in pair] for pair in images])
        columns = torch.tensor([[column_of[text] for text in pair] for pair in texts])
        pairs, where = distinct_pairs(
            rows[:, :, None].expand(-1, 2, 2), columns[:, None, :].expand(-1, 2, 2)
        )
        return _Items(find_images(self.folder, names), captions, rows, columns, pairs, where)


def _file_name(address: str) -> str:
    return PurePosixPath(urlsplit(address).path).name


def _fault(row: Any) -> str | None:
    """Returns what is wrong with an item, or None."""
    if not isinstance(row, list) or len(row) != 4 or not all(isinstance(x, str) for x in row):
        return f"{str(row)[:60]!r}"
    if not all(part.strip() for part in (_file_name(row[0]), row[1], _file_name(row[2]), row[3])):
        return "a blank caption or image name"
    if _file_name(row[0]) == _file_name(row[2]) or row[1] == row[3]:
        return "the same image or caption twice"
    return None
