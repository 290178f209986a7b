"""Retrieval among all images and captions of a split: Flickr30K and COCO.

File: Karpathy's JSON, `{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}]}]}`;
an image lies in the subfolder `filepath` where there is one, as COCO's do. The test split of
Flickr30K has 1,000 images and 5,000 captions, COCO's 5,000 and 25,010 (some images have more than
five). Source: Karpathy and Fei-Fei 2015, section 4.1.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

from PIL import Image
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import read_json
from vlmtune.benchmarks.ranking import CaptionedImage, Ranking
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

LAYOUT = "Karpathy's caption JSON"
FIRST = 5  # captions of an image that the reference convention ranks


class Retrieval(Ranking):
    """Recall at 1, 5 and 10 in a split, both ways; see `vlmtune.benchmarks.ranking`.

    COCO's "1K" is the mean over 5 folds of its 5,000 test images, "5K" are the numbers without
    folds. "strict" ranks every caption, "reference" the first five of each image.

    Args:
        path: The JSON.
        images: The folder with the images.
        split: The split to rank.
        convention: "strict" or "reference".
    """

    kind: ClassVar[Literal["compositional", "retained"]] = "retained"
    citation: ClassVar[str] = "Karpathy and Fei-Fei 2015, section 4.1 (Recall@K, median rank)"
    source: ClassVar[str] = (
        "cs.stanford.edu/people/karpathy/deepimagesent (the JSON), cocodataset.org and "
        "shannon.cs.illinois.edu/DenotationGraph (the images)"
    )

    path: str
    images: str
    split: str = "test"
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "Retrieval":
        (folder / "val2014").mkdir()
        captions = (
            ["a dog runs", "a dog on grass"],
            ["a cat sleeps", "a cat", "two cats", "cats on a bed", "a bed", "a bed with cats"],
            ["a dog runs", "a dog in snow", "a white dog"],
            ["a red car", "a car", "a parked car"],
            ["not in the test split"],
        )
        images = []
        for i, raws in enumerate(captions):
            file = f"COCO_val2014_{i:012d}.png"
            Image.new("RGB", (8, 8), (50 * i, 9, 200 - 40 * i)).save(folder / "val2014" / file)
            split = "test" if i < 4 else "val"
            sentences = [{"raw": raw, "imgid": i} for raw in raws]
            row = {"filepath": "val2014", "filename": file, "split": split, "sentences": sentences}
            images.append({"imgid": i, "cocoid": i, **row})
        path = folder / "dataset_coco.json"
        path.write_text(json.dumps({"images": images, "dataset": "coco"}), encoding="utf-8")
        return cls(str(path), str(folder), folds=2)

    @override
    def read(self) -> list[CaptionedImage]:
        used = None if self.strict else FIRST
        rows = read_split(Path(self.path), self.split)
        return [CaptionedImage(ImageRef(Path(self.images, x)), raws[:used]) for x, raws in rows]


def read_split(path: Path, split: str) -> list[tuple[str, tuple[str, ...]]]:
    """The images of a split in the order of the file: file name and captions, blanks collapsed."""
    content = read_json(path, LAYOUT)
    listed = content.get("images") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise _wrong(path, "no list `images` of objects")
    known = sorted({str(row.get("split")) for row in listed})
    if split not in known:
        raise UserError(
            f"expected a split out of {known} of {path}, got {split!r}: correct `split`"
        )
    rows = [_row(path, row) for row in listed if row.get("split") == split]
    if len({file for file, _ in rows}) != len(rows):
        raise _wrong(path, "the same image twice")
    return rows


def _row(path: Path, row: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    folder, file = row.get("filepath") or "", row.get("filename")
    try:
        raws = tuple(" ".join(sentence["raw"].split()) for sentence in row["sentences"])
    except (AttributeError, KeyError, TypeError) as error:
        raise _wrong(path, f"{file!r} with sentences of another layout ({error!r})") from error
    if not isinstance(folder, str) or not isinstance(file, str) or not file:
        raise _wrong(path, f"an image without a file name ({str(row)[:60]})")
    if not raws or not all(raws):
        raise _wrong(path, f"{file!r} without a caption, or with a blank one")
    return f"{folder}/{file}" if folder else file, raws


def _wrong(path: Path, came: str) -> UserError:
    return UserError(f"expected {LAYOUT} in {path}, got {came}: download it again")
