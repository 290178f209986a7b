"""Cola, multi-object queries: which of two images is the caption's, when words change places.

File: a JSON list of `[image_1, caption_1, image_2, caption_2]`; an image is a URL or path of which
only the file name counts. The released list has 210 items over 218 Visual Genome images. Source:
Ray et al. 2023, sections 3 and 5.1.
"""

import json
from pathlib import Path, PurePosixPath
from typing import ClassVar
from urllib.parse import urlsplit

from PIL import Image
from typing_extensions import override

from vlmtune.benchmarks.files import is_text, read_json
from vlmtune.benchmarks.paired import Paired, PairedItem
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

LAYOUT = "a JSON list of [image_1, caption_1, image_2, caption_2]"


class ColaMulti(Paired):
    """Accuracy over pairs of images that share objects and attributes, bound differently.

    An item is right where both captions prefer their image, `f(I,M) > f(I',M)` and
    `f(I',M') > f(I,M')`. That is Winoground's image score, and `accuracy` here; `text_accuracy` and
    `group_accuracy` are Winoground's others, not part of Cola. Intervals resample images, which
    most items share.

    Args:
        path: The JSON list.
        images: The folder with the image files.
    """

    primary_metric: ClassVar[str] = "accuracy"
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "accuracy", "group_accuracy")
    citation: ClassVar[str] = "Ray et al. 2023, Cola, section 5.1 (multi-object accuracy)"
    source: ClassVar[str] = "github.com/arijitray1993/COLA (data/; images at the addresses in it)"

    path: str
    images: str

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ColaMulti":
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

    @override
    def read(self) -> list[PairedItem]:
        rows = read_json(self.path, LAYOUT, self.source)
        items = []
        for i, row in enumerate(rows if isinstance(rows, list) else [rows]):
            cells = row if isinstance(row, list) and all(map(is_text, row)) else []
            names = [PurePosixPath(urlsplit(address).path).name for address in cells[::2]]
            if len(cells) != 4 or not all(names):
                raise UserError(
                    f"expected {LAYOUT} in {self.path}, got item {i} with {str(row)[:60]!r}: "
                    f"get the file from {self.source}"
                )
            first, second = (ImageRef(Path(self.images, name)) for name in names)
            items.append(PairedItem((first, second), (cells[1], cells[3])))
        return items
