"""SPEC's files, which both of its benchmarks read: cases of a query and the keys to choose from.

In: six folders of JSON and images. Out: the cases of a direction, the true key first.

Files: `absolute_size`, `relative_size`, `absolute_spatial`, `relative_spatial`, `existence` and
`count`, each with `image2text.json` and `text2image.json`, lists of `{"query", "keys", "label"}`:
an image of the folder and its candidate captions, or a caption and its candidate images, and the
position of the true one. Source: Peng et al. 2024, SPEC, section 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt
from typing_extensions import TypedDict

from vlmtune.benchmarks.files import Text
from vlmtune.benchmarks.rules.multiple_choice import MultipleChoice
from vlmtune.storage.files import read_json, reading

SIZES = ("absolute_size", "relative_size")
SUBSETS = (*SIZES, "absolute_spatial", "relative_spatial", "existence", "count")
LAYOUT = "a list of query, keys and label"


class _Case(TypedDict):
    query: Text
    keys: Annotated[list[Text], Field(min_length=2)]
    label: NonNegativeInt  # a negative one would count from the end


class SpecFiles(MultipleChoice):
    """One direction of SPEC, as a benchmark."""

    source = "vlmtune download spec_image_to_text"
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"subsets": SUBSETS}
    limit_per_group = True

    path: str
    subsets: Sequence[str] = SUBSETS

    def cases(self, file: str) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
        """Yields the folder, the query and the keys of each case, the true key first."""
        for subset in self.subsets:
            path = Path(self.path, subset, file)
            cases: list[_Case] = read_json(path, LAYOUT, self.fix, list[_Case])
            for case in cases:
                false = list(case["keys"])
                with reading(path, LAYOUT, self.fix):
                    true = false.pop(case["label"])
                yield path.parent, case["query"], (true, *false)
