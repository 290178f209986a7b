"""SPEC, text to image: which of the images that differ in size, position, existence or count.

In: the files of `vlmtune.benchmarks.spec_files`. Out: items of the multiple-choice rule, with
images to choose from.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.items import ComparedItem
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem
from vlmtune.benchmarks.rules.ranking import best_images
from vlmtune.benchmarks.spec_files import SpecFiles
from vlmtune.results.result import Example
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class ImageChoice(ChoiceItem):
    """One item: a caption, its image, and false images to choose from."""

    false_images: tuple[ImageRef, ...] = ()

    @property
    @override
    def scored_pairs(self) -> tuple[tuple[ImageRef, str], ...]:
        (caption,) = self.candidates
        return tuple((image, caption) for image in self.comparison.images)

    @property
    @override
    def cluster(self) -> Hashable:
        # Several captions choose from one set of images.
        return frozenset(self.comparison.images)

    @property
    @override
    def comparison(self) -> ComparedItem:
        return ComparedItem((self.image, *self.false_images), self.candidates)


class SpecTextToImage(SpecFiles):
    """How often the true image scores highest, by subset.

    - `macro_accuracy`: mean over the subsets, the number of the paper.
    - `accuracy/<subset>`, and `accuracy` over all captions; chance is 1 over the number of images.

    A tie is wrong, where the published script takes the first of the best. Intervals count sets of
    images, as several captions choose from one set.

    Args:
        path: The folder with the six folders.
        subsets: The subsets to evaluate.
    """

    full_name = "SPEC text to image"
    asks = "changes of an image"
    citation = "Peng et al. 2024, SPEC, section 3 (text-to-image accuracy)"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "SpecTextToImage":
        counts = {"1.jpg": "one dog", "2.jpg": "two dogs", "3.jpg": "three dogs"}
        for k, subset in enumerate(("count", "existence")):
            keys = list(counts)[k:]
            cases = []
            for label, file in enumerate(keys):
                write_image(folder / subset / file, 90 * k, 80 * label, 20)
                cases.append({"query": counts[file], "keys": keys, "label": label})
            write_json(folder / subset / "text2image.json", cases)
        return cls(str(folder), ["count", "existence"])

    @override
    def read(self) -> list[ImageChoice]:
        items = []
        for folder, query, keys in self.cases("text2image.json"):
            true, *false = [ImageRef(folder / key) for key in keys]
            items.append(ImageChoice(true, (query,), folder.name, false_images=tuple(false)))
        return items

    @override
    def checked(self, items: Sequence[ChoiceItem]) -> tuple[list[ChoiceItem], int]:
        # An item has one caption, so there is none that repeats it.
        return list(items), 0

    @override
    def example(self, values: Float[Tensor, "m"], item: int, correct: bool) -> Example:
        (caption,) = self.items.kept[item].candidates
        positions = self.items.positions[item]
        positions = positions[positions >= 0]
        assert self.items.pairs is not None
        images = self.items.pairs[positions, 0]
        is_true = torch.arange(len(images)) == 0
        scores = values[: len(images)]
        return best_images(self.items, caption, images, scores, is_true, correct)
