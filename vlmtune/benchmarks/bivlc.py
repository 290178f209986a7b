"""BiVLC: SugarCrepe's captions with an image for the false one as well, so 2 x 2 items.

In: Parquet files with images inside. Out: items of the paired rule. The images are written to files
beside the table, once.

Files: `test-*.parquet` with the columns image, caption, negative_caption, negative_image, type
(replace, swap or add) and subtype (obj, att or rel): 2,933 rows. The caption is true of the image,
a photograph of COCO, and the negative caption of the negative image, a generated one. Source:
Miranda et al. 2024.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from jaxtyping import Float
from pydantic import Field, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.files import Text, write_image
from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.benchmarks.table_files import read_shards, write_parquet, written_image
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.result import Result
from vlmtune.types import ImageRef

LAYOUT = "Parquet rows of image, caption, negative_caption, negative_image, type and subtype"


class _Image(TypedDict):
    """An image as the library `datasets` stores it; its path is not read."""

    bytes: Annotated[bytes, Field(min_length=1)]


class _Row(TypedDict):
    """A row of the table."""

    image: _Image
    caption: Text
    negative_caption: Text
    negative_image: _Image
    type: Text
    subtype: Text


ROW = TypeAdapter(_Row)


class BiVLC(Paired):
    """Text, image and group accuracy over all items, by type and by type and subtype.

    The paper's names: `text_accuracy` is I2T (each image prefers its caption, chance 1/4),
    `image_accuracy` T2I (1/4), `group_accuracy` the group score (1/6). `/swap` is over a type and
    `/swap_att` over a subtype of it. With a single query, chance 1/2: `ipos_2t` and `ineg_2t`, how
    often the photograph and the generated image prefer their caption (the former is SugarCrepe's
    accuracy on these items), `tpos_2i` and `tneg_2i`, how often the caption and the negative
    caption prefer their image. A tie is never a win, as in the released script.

    Args:
        path: The folder with the Parquet files.
        images: Where the images of the table are written, by default the folder `images` in `path`.
    """

    full_name = "BiVLC"
    asks = "edited captions"
    citation = "Miranda et al. 2024, BiVLC (I2T, T2I and group score)"
    source = "vlmtune download bivlc"

    path: str
    images: str | None = None

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "BiVLC":
        captions = (
            ("a cat by a door", "a dog by a door", "replace", "obj"),
            ("a red cup on a blue box", "a blue cup on a red box", "swap", "att"),
            ("a man on a bench", "a man and a dog on a bench", "add", "obj"),
        )
        keys = ("caption", "negative_caption", "type", "subtype")
        rows = []
        for i, texts in enumerate(captions):
            row: dict[str, Any] = dict(zip(keys, texts, strict=True))
            for column, red in (("image", 200), ("negative_image", 0)):
                path = folder / "made" / f"{i}_{column}.png"
                write_image(path, red, 60 * i, 200 - red)
                row[column] = {"bytes": path.read_bytes(), "path": path.name}
            rows.append(row)
        write_parquet(folder / "test-00000-of-00002.parquet", rows[:2])
        write_parquet(folder / "test-00001-of-00002.parquet", rows[2:])
        return cls(str(folder))

    @override
    def read(self) -> list[PairedItem]:
        rows: Iterator[_Row] = read_shards(Path(self.path), ROW, LAYOUT, self.fix)
        items = []
        for row in rows:
            images = (self._image(row["image"]), self._image(row["negative_image"]))
            texts = (row["caption"], row["negative_caption"])
            part = f"{row['type']}_{row['subtype']}"
            items.append(PairedItem(images, texts, row["type"], (part,)))
        return items

    def _image(self, cell: _Image) -> ImageRef:
        folder = self.images or Path(self.path, "images")
        return written_image(cell["bytes"], Path(folder))

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        values = scores.double()[self.items.positions]
        # The image comes first in these names: of positive and negative image with each caption.
        pos_pos, pos_neg, neg_pos, neg_neg = values.flatten(1).T
        wins = {
            "ipos_2t": pos_pos > pos_neg,
            "ineg_2t": neg_neg > neg_pos,
            "tpos_2i": pos_pos > neg_pos,
            "tneg_2i": neg_neg > pos_neg,
        }
        for name, won in wins.items():
            result.metrics[name] = cluster_robust_mean(won.double(), self.items.ways, 1 / 2)
        return result
