"""COCO's files: an image by its split, and the image that a caption is of.

In: files of COCO's captions, and the folder of images. Out: images, whose existence is checked
later. Never: an image that is opened.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from typing_extensions import TypedDict

from vlmtune.benchmarks.files import first_file
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

LAYOUT = "COCO captions with images and annotations"


class _Image(TypedDict):
    id: int
    file_name: str


class _Annotation(TypedDict):
    image_id: int
    caption: str


class _Captions(TypedDict):
    """A file of COCO's captions; it holds more."""

    images: list[_Image]
    annotations: list[_Annotation]


def coco_image(folder: str, split: str, name: str) -> ImageRef:
    """An image in the folder of its split, or in the one of all images."""
    in_split = Path(folder, split, name)
    in_folder = Path(folder, name)
    return ImageRef(first_file([in_split, in_folder]))


def images_of_captions(
    paths: Sequence[str], folder: str, wanted: Collection[str], fix: str
) -> dict[str, ImageRef]:
    """The first image of each caption that is wanted; captions are compared as `closed` has them.

    Images are called `COCO_val2014_000000000042.jpg`.
    """
    images: dict[str, ImageRef] = {}
    for path in paths:
        content: _Captions = read_json(path, LAYOUT, fix, _Captions)
        names = {image["id"]: image["file_name"] for image in content["images"]}
        for annotation in content["annotations"]:
            caption = closed(annotation["caption"])
            name = names.get(annotation["image_id"])
            if caption in wanted and caption not in images and name is not None:
                split = "".join(name.split("_")[1:2])
                images[caption] = coco_image(folder, split, name)
    return images


def closed(text: str) -> str:
    """The text with single spaces, and none before punctuation.

    Example:
        >>> closed("A kitchen has white cabinets , and the cook 's hat is red .")
        "A kitchen has white cabinets, and the cook's hat is red."
    """
    return re.sub(r" (?=[.,;:!?]|'s\b|n't\b)", "", " ".join(text.split()))
