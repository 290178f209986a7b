"""SPEC, image to text: which of the captions that differ in size, position, existence or count.

In: the files of `vlmtune.benchmarks.spec_files`. Out: items of the multiple-choice rule.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem
from vlmtune.benchmarks.spec_files import SpecFiles
from vlmtune.types import ImageRef


class SpecImageToText(SpecFiles):
    """How often the true caption scores highest, by subset.

    - `macro_accuracy`: mean over the subsets, the number of the paper.
    - `accuracy/<subset>`, and `accuracy` over all images; chance is 1 over the number of captions.

    A tie is wrong, where the published script takes the first of the best. The other direction, a
    caption with candidate images, is `spec_text_to_image`.

    Args:
        path: The folder with the six folders.
        subsets: The subsets to evaluate.
    """

    full_name = "SPEC image to text"
    asks = "edited captions"
    citation = "Peng et al. 2024, SPEC, section 3 (image-to-text accuracy)"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "SpecImageToText":
        counts = ("one dog", "two dogs", "three dogs")
        for k, subset in enumerate(("count", "existence")):
            cases = []
            for label in range(2):
                write_image(folder / subset / f"{label}.jpg", 90 * k, 200 * label, 20)
                cases.append({"query": f"{label}.jpg", "keys": counts[k:], "label": label})
            write_json(folder / subset / "image2text.json", cases)
        return cls(str(folder), ["count", "existence"])

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for folder, query, keys in self.cases("image2text.json"):
            image = ImageRef(folder / query)
            items.append(ChoiceItem(image, keys, folder.name))
        return items
