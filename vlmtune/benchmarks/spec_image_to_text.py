"""SPEC, image to text: which of the captions that differ in size, position, existence or count.

In: six folders of JSON and images. Out: items of the multiple-choice rule.

Files: `absolute_size`, `relative_size`, `absolute_spatial`, `relative_spatial`, `existence` and
`count`, each with `image2text.json`, a list of `{"query", "keys", "label"}`: an image of the
folder, its candidate captions, and the position of the true one. Source: Peng et al. 2024, SPEC,
section 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.files import Text, get_file, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.storage.files import read_json, reading
from vlmtune.types import ImageRef

SIZES = ("absolute_size", "relative_size")
SUBSETS = (*SIZES, "absolute_spatial", "relative_spatial", "existence", "count")
LAYOUT = "a list of query, keys and label"
SOURCE = "vlmtune download spec_image_to_text"


class _Case(TypedDict):
    query: Text
    keys: Annotated[list[Text], Field(min_length=2)]
    label: NonNegativeInt  # a negative one would count from the end


class SpecImageToText(MultipleChoice):
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
    source = SOURCE
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"subsets": SUBSETS}
    limit_per_group = True

    path: str
    subsets: Sequence[str] = SUBSETS

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
        for subset in self.subsets:
            path = Path(self.path, subset, "image2text.json")
            for query, keys in read_cases(path):
                image = ImageRef(path.parent / query)
                items.append(ChoiceItem(image, keys, subset))
        return items


def read_cases(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the query and the keys of each case of a file, the true key first."""
    for case in read_json(path, LAYOUT, get_file(SOURCE), list[_Case]):
        false = list(case["keys"])
        with reading(path, LAYOUT, get_file(SOURCE)):
            true = false.pop(case["label"])
        yield case["query"], (true, *false)
