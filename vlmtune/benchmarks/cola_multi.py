"""Cola, multi-object queries: which of two images is the caption's, when words change places.

In: the annotation file and a folder of images. Out: items of the paired rule.

File: a JSON list of `[image_1, caption_1, image_2, caption_2]`, or with the item's `votes` at the
end; an image is a URL or path of which only the file name counts. The released list has 210 items
over 218 Visual Genome images, and no votes. Source: Ray et al. 2023, sections 3 and 5.1.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar
from urllib.parse import urlsplit

from typing_extensions import override

from vlmtune.benchmarks.files import Text, write_image, write_json
from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.benchmarks.votes import VoteOptions, Votes
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

LAYOUT = "a JSON list of [image_1, caption_1, image_2, caption_2], or with votes at the end"
# Also without `min_votes`, what stands behind the captions must be votes.
Row = tuple[Text, Text, Text, Text] | tuple[Text, Text, Text, Text, Votes]


class ColaMulti(VoteOptions, Paired):
    """Accuracy over pairs of images that share objects and attributes, bound differently.

    An item is right where both captions prefer their image, `f(I,M) > f(I',M)` and
    `f(I',M') > f(I,M')`. That is Winoground's image score, and `accuracy` here; `text_accuracy` and
    `group_accuracy` are Winoground's others, not part of Cola. Intervals count images, which
    most items share, and captions.

    Args:
        words: Words to group items by: those of the list that an item's first caption has, such as
            "cube and sphere" for shapes.
    """

    primary_metric = "accuracy"
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "accuracy", "group_accuracy")
    full_name = "Cola multi-object"
    asks = "attributes"
    citation = "Ray et al. 2023, Cola, section 5.1 (multi-object accuracy)"
    source = "vlmtune download cola_multi"

    path: str
    images: str
    words: Sequence[str] = ()

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ColaMulti":
        for i in range(5):
            write_image(folder / f"{i}.png", 50 * i, 9, 200 - 40 * i)
        site = "https://example.org/vg"
        rows = [
            [f"{site}/0.png", "red cup on blue box", f"{site}/1.png", "blue cup on red box"],
            [f"{site}/0.png", "red cup on blue box", f"{site}/2.png", "blue box on red cup"],
            [f"{site}/3.png", "old man by young tree", f"{site}/4.png", "young man by old tree"],
        ]
        return cls(write_json(folder / "cola_multi.json", rows), str(folder))

    @override
    def read(self) -> list[PairedItem]:
        rows: list[Row] = read_json(self.path, LAYOUT, self.fix, list[Row])
        votes = []
        for position, row in enumerate(rows):
            cell = row[4] if len(row) == 5 else None  # the released file has no votes
            votes.append((cell, f"row {position} of {self.path}"))
        items = []
        for first, caption, second, other, *_ in self.agreed(rows, votes):
            images = (self._image(first), self._image(second))
            texts = (caption, other)
            stated = sorted(set(caption.split()) & set(self.words))
            items.append(PairedItem(images, texts, group=" and ".join(stated)))
        return items

    def _image(self, address: str) -> ImageRef:
        name = PurePosixPath(urlsplit(address).path).name
        return ImageRef(Path(self.images, name))
