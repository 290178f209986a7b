"""Retrieval among all images and captions of a split: Flickr30K and COCO.

In: Karpathy's JSON and a folder of images. Out: items of the ranking rule.

File: Karpathy's JSON, `{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}]}]}`;
an image lies in the subfolder `filepath` where there is one, as COCO's do. The test split of
Flickr30K has 1,000 images and 5,000 captions, COCO's 5,000 and 25,010 (some images have more than
five). Source: Karpathy and Fei-Fei 2015, section 4.1.
"""

from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import Field
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Text, file_error, write_image, write_json
from vlmtune.benchmarks.rules.ranking import CaptionedImage, Ranking
from vlmtune.errors import UserError
from vlmtune.storage.files import check_shape, read_json
from vlmtune.types import ImageRef

LAYOUT = "Karpathy's caption JSON"
FIRST = 5  # captions of an image that the reference convention ranks


class _Sentence(TypedDict):
    """A caption."""

    raw: Text


class _Row(TypedDict, total=False):
    """An image of the split."""

    filepath: str | None
    filename: Required[Annotated[str, Field(min_length=1)]]
    sentences: Required[Annotated[list[_Sentence], Field(min_length=1)]]


class _File(TypedDict):
    """The whole file."""

    images: list[dict[str, Any]]


class Retrieval(Ranking):
    """Recall at 1, 5 and 10 in a split, both ways; see `vlmtune.benchmarks.rules.ranking`.

    COCO's "1K" is the mean over 5 folds of its 5,000 test images, "5K" are the numbers without
    folds. "strict" ranks every caption, "reference" the first five of each image.
    """

    kind = "retained"
    full_name = "Retrieval"
    asks = "retrieval"
    citation = "Karpathy and Fei-Fei 2015, section 4.1 (Recall@K, median rank)"
    source = "vlmtune download retrieval"

    path: str
    images: str
    split: str = "test"
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "Retrieval":
        captions_of = (
            ["a dog runs", "a dog on grass"],
            ["a cat sleeps", "a cat", "two cats", "cats on a bed", "a bed", "a bed with cats"],
            ["a dog runs", "a dog in snow", "a white dog"],
            ["a red car", "a car", "a parked car"],
            ["not in the test split"],
        )
        images = []
        for i, captions in enumerate(captions_of):
            file = f"COCO_val2014_{i:012d}.jpg"
            write_image(folder / "val2014" / file, 50 * i, 9, 200 - 40 * i)
            row = {
                "filepath": "val2014",
                "filename": file,
                "split": "test" if i < 4 else "val",
                "sentences": [{"raw": caption} for caption in captions],
            }
            images.append(row)
        path = write_json(folder / "dataset_coco.json", {"images": images})
        return cls(path, str(folder), folds=2)

    @override
    def read(self) -> list[CaptionedImage]:
        # Published scripts rank five captions an image; some have six or seven.
        used = None if self.strict else FIRST
        items = []
        for file, captions in read_split(Path(self.path), self.split):
            image = ImageRef(Path(self.images, file))
            items.append(CaptionedImage(image, captions[:used]))
        return items


def read_split(path: Path, split: str) -> list[tuple[str, tuple[str, ...]]]:
    """The images of a split in the order of the file: file name and captions, blanks collapsed."""
    listed = read_json(path, LAYOUT, shape=_File)["images"]
    # What another split holds is not looked at. An error names the position in the file.
    rows = {i: row for i, row in enumerate(listed) if row.get("split") == split}
    if not rows:
        known = sorted({str(row.get("split")) for row in listed})
        raise UserError(
            f"expected a split out of {known} of {path}, got {split!r}: name one by `split`"
        )
    images: dict[str, tuple[str, ...]] = {}
    for row in check_shape(rows, dict[int, _Row], path, LAYOUT).values():
        file = row["filename"]
        if row.get("filepath"):
            file = f"{row['filepath']}/{file}"
        captions = [" ".join(sentence["raw"].split()) for sentence in row["sentences"]]
        images[file] = tuple(captions)
    if len(images) < len(rows):
        raise file_error(path, LAYOUT, "the same image twice")
    return list(images.items())
