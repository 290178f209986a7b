"""SugarCrepe: a COCO caption against a fluent and plausible one that is false of the image.

Files: `add_att.json`, `add_obj.json`, `replace_att.json`, `replace_obj.json`, `replace_rel.json`,
`swap_att.json`, `swap_obj.json`, each a JSON object from "0", "1", ... to `{"filename", "caption",
"negative_caption"}`. Keys may lack: the released swap_obj has no "108". Images are whole ones of
COCO val2017. Source: Hsieh et al. 2023.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from vlmtune.benchmarks.base import Benchmark, Convention, read_json
from vlmtune.benchmarks.choices import Choice, Choices
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

SUBSETS = (
    "add_att",
    "add_obj",
    "replace_att",
    "replace_obj",
    "replace_rel",
    "swap_att",
    "swap_obj",
)
FORMS = ("add", "replace", "swap")
KEYS = ("filename", "caption", "negative_caption")
LAYOUT = 'a JSON object {"0": {"filename", "caption", "negative_caption"}, ...}'


class SugarCrepe(Choices):
    """Accuracy over all items, by subset and by form of the change.

    - `accuracy`: over all items of the chosen subsets, one pool (7,511 of all seven).
    - `accuracy/<subset>`, and `accuracy/add`, `/replace`, `/swap` over all items of the form.
    - `macro_accuracy`: mean over the three forms, each weighted by items within itself; the
      aggregate of the published comparison of compositional fine-tuning (vl_compo).

    Both conventions count a tie as wrong, as the released evaluation does. They differ in the
    number that stands for the whole: `accuracy` in "strict", `macro_accuracy` in "reference". Other
    scripts take the argmax with the true caption first and so count ties as right; their numbers
    are higher where a scorer ties.

    Args:
        path: The folder with the JSON files.
        images: The folder of COCO val2017.
        subsets: Which of the seven; all by default.
        name: Name in reports, unique within a run.
        convention: "strict" or "reference".
        limit: Evaluate at most so many items of all.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: A subset is unknown or named twice, `limit` is below 1, or the convention is
            unknown.
    """

    version: ClassVar[str] = "1"
    citation: ClassVar[str] = "Hsieh et al. 2023, SugarCrepe, section 4 (accuracy per subset)"
    source: ClassVar[str] = "github.com/RAIVNLab/sugar-crepe, data/; cocodataset.org, val2017"
    reference_primary: ClassVar[str] = "macro_accuracy"

    def __init__(
        self,
        path: str,
        images: str,
        subsets: Sequence[str] = SUBSETS,
        name: str = "sugar_crepe",
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__(name, convention, limit, seed)
        wrong = [subset for subset in subsets if subset not in SUBSETS]
        if wrong or not subsets or len(set(subsets)) != len(subsets):
            raise UserError(
                f"expected subsets of {', '.join(SUBSETS)}, each once, got {list(subsets)}: "
                "correct `subsets`"
            )
        self.path = Path(path)
        self.folder = Path(images)
        self.subsets = tuple(subsets)

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
        """One item in four of the subsets and two in another, one key missing; two images."""
        made = {
            "add_att": [("a dog on a mat", "a wet dog on a mat", 0)],
            "replace_obj": [("a cat by a door", "a cat by a fence", 1)],
            "replace_rel": [("a dog on a mat", "a dog under a mat", 0)],
            "swap_att": [("a big cat by a small door", "a small cat by a big door", 1)],
            "swap_obj": [("a dog on a mat", "a mat on a dog", 0), ("a cat by a", "a by a cat", 1)],
        }
        for i in (0, 1):
            Image.new("RGB", (8, 8), (200 * i, 90, 20)).save(folder / f"{i:012d}.jpg")
        for subset, rows in made.items():
            items = {
                str(2 * k): dict(zip(KEYS, (f"{i:012d}.jpg", true, false), strict=True))
                for k, (true, false, i) in enumerate(rows)
            }
            (folder / f"{subset}.json").write_text(json.dumps(items), encoding="utf-8")
        return cls(str(folder), str(folder), list(made))

    def _read(self) -> list[Choice]:
        return [choice for subset in self.subsets for choice in self._subset(subset)]

    def _subset(self, subset: str) -> list[Choice]:
        path = self.path / f"{subset}.json"
        items = read_json(path, f"{LAYOUT} from {self.source}")
        if not isinstance(items, dict) or not items:
            raise UserError(f"expected {LAYOUT} in {path}, got no object or an empty one")
        return [self._choice(path, key, item) for key, item in items.items()]

    def _choice(self, path: Path, key: str, item: Any) -> Choice:
        values = [item.get(name) for name in KEYS] if isinstance(item, dict) else []
        texts = [value for value in values if isinstance(value, str) and value.strip()]
        if len(texts) != len(KEYS):
            raise UserError(
                f"expected {LAYOUT} in {path}, got {str(item)[:60]} under {key!r}: "
                "download the file again"
            )
        file, true, false = texts
        return Choice(ImageRef(self.folder / file), (true, false), path.stem)

    def _unions(self, groups: Sequence[str]) -> Mapping[str, Collection[str]]:
        united = {form: [g for g in groups if g.startswith(f"{form}_")] for form in FORMS}
        return {form: members for form, members in united.items() if members}
