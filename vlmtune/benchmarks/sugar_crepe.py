"""SugarCrepe: a COCO caption against a fluent and plausible one that is false of the image.

In: seven JSON files and COCO's images. Out: items of the multiple-choice rule.

Files: `add_att.json`, `add_obj.json`, `replace_att.json`, `replace_obj.json`, `replace_rel.json`,
`swap_att.json`, `swap_obj.json`, each a JSON object from "0", "1", ... to `{"filename", "caption",
"negative_caption"}`. Keys may be missing: the released swap_obj has no "108". Images are whole ones
of COCO val2017. Source: Hsieh et al. 2023.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice, united
from vlmtune.types import ImageRef

FORMS = ("add", "replace", "swap")
ADD = ("add_att", "add_obj")
SUBSETS = (*ADD, "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
KEYS = ("filename", "caption", "negative_caption")


class SugarCrepe(MultipleChoice):
    """Accuracy over all items, by subset and by form of the change.

    - `accuracy`: over all items of the chosen subsets, one pool (7,511 of all seven).
    - `accuracy/<subset>`, and `accuracy/add`, `/replace`, `/swap` over all items of the form.
    - `macro_accuracy`: mean over the three forms, each weighted by items within itself; the
      aggregate of the published comparison of compositional fine-tuning (vl_compo).

    Both conventions count a tie as wrong, as the released evaluation does. They differ in the
    primary metric: `accuracy` in "strict", `macro_accuracy` in "reference".
    """

    full_name = "SugarCrepe"
    asks = "edited captions"
    citation = "Hsieh et al. 2023, SugarCrepe, section 4 (accuracy per subset)"
    source = "vlmtune download sugar_crepe"
    reference_metric = "macro_accuracy"
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"subsets": SUBSETS}

    path: str
    images: str
    subsets: Sequence[str] = SUBSETS
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "SugarCrepe":
        rows_of = {
            "add_att": [("a dog on a mat", "a wet dog on a mat", 0)],
            "replace_obj": [("a cat by a door", "a cat by a fence", 1)],
            "swap_obj": [("a dog on a mat", "a mat on a dog", 0), ("a cat by a", "a by a cat", 1)],
        }
        for i in (0, 1):
            write_image(folder / f"{i:012d}.jpg", 200 * i, 90, 20)
        for subset, rows in rows_of.items():
            items = {}
            for k, (true, false, i) in enumerate(rows):
                cells = (f"{i:012d}.jpg", true, false)
                items[2 * k] = dict(zip(KEYS, cells, strict=True))
            write_json(folder / f"{subset}.json", items)
        return cls(str(folder), str(folder), list(rows_of))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for subset in self.subsets:
            path = Path(self.path, f"{subset}.json")
            for row in self.rows(path, *KEYS):
                image = ImageRef(Path(self.images, row["filename"]))
                texts = (row["caption"], row["negative_caption"])
                items.append(ChoiceItem(image, texts, subset))
        return items

    @override
    def unions(self, groups: Sequence[str]) -> Mapping[str, Collection[str]]:
        return united(groups, FORMS, "_")
