"""Cola, multi-object queries: which of two images is the caption's, when words change places.

File: a JSON list of `[image_1, caption_1, image_2, caption_2]`; an image is a URL or path of which
only the last part, its file name, is used. The released list has 210 items over 218 Visual Genome
images. Source: Ray et al. 2023, sections 3 and 5.1.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from urllib.parse import urlsplit

from PIL import Image

from vlmtune.benchmarks.base import Benchmark, Convention, read_json
from vlmtune.benchmarks.squares import Square, Squares
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

WANTED = "a JSON list of [image_1, caption_1, image_2, caption_2]"


class ColaMulti(Squares):
    """Accuracy over pairs of images that share objects and attributes, bound differently.

    An item is right where both captions prefer their image, `f(I,M) > f(I',M)` and
    `f(I',M') > f(I,M')`; a tie is wrong. That is Winoground's image score, and `accuracy` here;
    `text_accuracy` and `group_accuracy` are Winoground's others, not part of Cola. The published
    script compares strictly, so both conventions give the same numbers. Intervals resample images,
    which most items share.

    Args:
        path: The JSON list.
        images: The folder with the image files.
        name: Name in reports, unique within a run.
        limit: Evaluate at most so many items.
        convention: "strict" or "reference"; here the same.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, or the convention is unknown.
    """

    primary: str = "accuracy"
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "accuracy", "group_accuracy")
    citation: ClassVar[str] = "Ray et al. 2023, Cola, section 5.1 (multi-object accuracy)"
    source: ClassVar[str] = "github.com/arijitray1993/COLA (data/; images at the addresses in it)"

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "cola_multi",
        limit: int | None = None,
        convention: Convention = "strict",
        seed: int | None = None,
    ) -> None:
        super().__init__(name, convention, limit, seed)
        self.path = Path(path)
        self.folder = Path(images)

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
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

    def _read(self) -> list[Square]:
        listed = read_json(self.path, WANTED)
        if not isinstance(listed, list) or not listed:
            raise UserError(
                f"expected {WANTED} in {self.path}, got no list or an empty one: "
                f"get it from {self.source}"
            )
        return [self._square(i, row) for i, row in enumerate(listed)]

    def _square(self, i: int, row: Any) -> Square:
        if not isinstance(row, list) or len(row) != 4 or not all(isinstance(x, str) for x in row):
            raise self._wrong(i, f"{str(row)[:60]!r}")
        first, second = (PurePosixPath(urlsplit(address).path).name for address in row[::2])
        if not all(part.strip() for part in (first, row[1], second, row[3])):
            raise self._wrong(i, "a blank caption or image name")
        images = (ImageRef(self.folder / first), ImageRef(self.folder / second))
        return Square(images, (row[1], row[3]))

    def _wrong(self, i: int, came: str) -> UserError:
        return UserError(
            f"expected {WANTED} in {self.path}, got item {i} with {came}: download the file again"
        )
