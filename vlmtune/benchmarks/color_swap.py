"""ColorSwap: two images and two captions whose colours change places.

In: the JSON file and its images. Out: items of the paired rule.

File: `data/test.json` (300 items; `train.json` 700), a JSON list of `{"id", "caption_1",
"caption_2", "image_1", "image_2", "image_source", "caption_source"}`; caption i is true of image i.
Source: Burapacheep et al. 2024, ColorSwap, section 4.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.types import ImageRef

KEYS = ("image_1", "image_2", "caption_1", "caption_2")


class ColorSwap(Paired):
    """Winoground's text, image and group accuracy, strict as in the published evaluation.

    Args:
        images: The folder that `image_1` and `image_2` start from, of `images.zip`.
    """

    full_name = "ColorSwap"
    asks = "attributes"
    citation = "Burapacheep et al. 2024, ColorSwap, section 4"
    source = "vlmtune download color_swap"

    path: str
    images: str

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ColorSwap":
        rows = []
        for i, shape in enumerate(("cube", "ball", "cone")):
            write_image(folder / f"{i}_1.png", 200, 50 * i, 0)
            write_image(folder / f"{i}_2.png", 0, 50 * i, 200)
            row = {"id": i, "image_1": f"{i}_1.png", "image_2": f"{i}_2.png"}
            row["caption_1"] = f"a red {shape} and a blue cup"
            row["caption_2"] = f"a blue {shape} and a red cup"
            rows.append(row)
        return cls(write_json(folder / "test.json", rows), str(folder))

    @override
    def read(self) -> list[PairedItem]:
        items = []
        for row in self.rows(self.path, *KEYS):
            first = ImageRef(Path(self.images, row["image_1"]))
            second = ImageRef(Path(self.images, row["image_2"]))
            texts = (row["caption_1"], row["caption_2"])
            items.append(PairedItem((first, second), texts))
        return items
