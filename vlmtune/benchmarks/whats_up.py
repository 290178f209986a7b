"""What'sUp: where one object is of another, or in the image, when only the preposition changes.

In: six JSON files and their images. Out: items of the multiple-choice rule, some of them in sets.

Files: `controlled_images_dataset.json` (part A, 412 items) and `controlled_clevr_dataset.json` (B,
408), lists of `{"image_path", "caption_options"}` with four captions, the first one true; an image
is called `<object>_<preposition>_..._<object>.jpeg`. The other four are in `whats_up_questions`.
Source: Kamath et al. 2023, table 3.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Text, write_image, write_json
from vlmtune.benchmarks.rules.choice_items import ChoiceItem
from vlmtune.benchmarks.rules.choice_sets import ChoiceSets, SetItem
from vlmtune.benchmarks.whats_up_questions import QUESTIONS, read_questions
from vlmtune.storage.files import read_json, reading
from vlmtune.types import ImageRef

CONTROLLED = {  # part -> its file, and the folder of its images
    "controlled_a": ("controlled_images_dataset.json", "controlled_images"),
    "controlled_b": ("controlled_clevr_dataset.json", "controlled_clevr"),
}
PARTS = (*CONTROLLED, *QUESTIONS)
ROWS = 'a list of {"image_path": "<object>_<preposition>_<object>.jpeg", "caption_options": [...]}'


class _Row(TypedDict):
    """A photograph of two objects, with its captions."""

    image_path: Text
    caption_options: Annotated[list[Text], Field(min_length=2)]


class WhatsUp(ChoiceSets):
    """Accuracy of each part, their mean, and of parts A and B that of pairs and of sets.

    - `macro_accuracy`: the mean over the parts, each weighted alike; what vl_compo reports.
    - `accuracy/<part>`: chance 1/4 in `controlled_a` and `controlled_b`, 1/2 in the others
      (`coco_one`, `coco_two`, `vg_one`, `vg_two`). `accuracy`: over all items, one pool.
    - `pair_accuracy/<part>`, of A and B: a pair is left with right of the same two objects, on with
      under (A), in front with behind (B); chance 1/16.
    - `set_accuracy/<part>` and `group_match/<part>`: of the four images of the same two objects;
      chance 1/256 and 1/24. The script divides by a quarter of the items, which are all in sets.

    Conventions: "strict": a tie is wrong. "reference", as in the released script: a tie is right,
    since argmax takes the first caption and that is the true one in every row.

    Args:
        path: The folder with the six JSON files.
        images: The folder with the folders `controlled_images`, `controlled_clevr`, `vg_images`.
        coco: The folder with the images of COCO val2017.
        parts: The parts to evaluate.
    """

    primary_metric = "macro_accuracy"
    reference_ties = "right"
    full_name = "What'sUp"
    asks = "relations"
    citation = "Kamath et al. 2023, What'sUp, table 3 (individual, pairs, sets)"
    source = "vlmtune download whats_up"
    limit_per_group = True
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"parts": PARTS}

    path: str
    images: str
    coco: str
    parts: Sequence[str] = PARTS
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "WhatsUp":
        sides = {"left_of": "left of", "right_of": "right of", "on": "on", "under": "under"}
        rows = []
        for number, (name, words) in enumerate(sides.items()):
            file = f"controlled_images/mug_{name}_table.jpeg"
            write_image(folder / file, 50 * number, 90, 20)
            others = [side for side in sides.values() if side != words]
            captions = [f"A mug {side} a table" for side in (words, *others)]
            rows.append({"image_path": f"data/{file}", "caption_options": captions})
        write_json(folder / "controlled_images_dataset.json", rows)
        questions = [[7, "A dog on the left", "A dog on the right"]]
        for file in ("coco_qa_one_obj.json", "vg_qa_two_obj.json"):
            write_json(folder / file, questions)
        write_image(folder / "val2017" / "000000000007.jpg", 9, 90, 200)
        write_image(folder / "vg_images" / "7.jpg", 9, 200, 90)
        parts = ["controlled_a", "coco_one", "vg_two"]
        return cls(str(folder), str(folder), str(folder / "val2017"), parts)

    @override
    def read(self) -> list[ChoiceItem]:
        items: list[ChoiceItem] = []
        for part in self.parts:
            if part in CONTROLLED:
                items += self._controlled(part)
            else:
                items += read_questions(self.path, part, self.images, self.coco, self.fix)
        return items

    def _controlled(self, part: str) -> list[SetItem]:
        file, folder = CONTROLLED[part]
        path = Path(self.path, file)
        items = []
        for row in read_json(path, ROWS, self.fix, list[_Row]):
            # The published paths start from another working directory.
            name = PurePosixPath(row["image_path"])
            with reading(path, ROWS, self.fix):
                first, side, *_, second = name.stem.split("_")
            objects = f"{first} {second}"
            axis = "left or right" if side in ("left", "right") else "other"
            image = ImageRef(Path(self.images, folder, name.name))
            texts = tuple(row["caption_options"])
            items.append(SetItem(image, texts, part, 1, objects, axis))
        return items
