"""What'sUp's questions: photographs of COCO and of Visual Genome with a true and a false caption.

In: a JSON file, and the folders of images. Out: multiple-choice items.

Files: `coco_qa_one_obj.json` (2,247), `coco_qa_two_obj.json` (440), `vg_qa_one_obj.json` (1,160)
and `vg_qa_two_obj.json` (291), lists of `[image id, true caption, false caption]`.
"""

from pathlib import Path

from vlmtune.benchmarks.files import Text
from vlmtune.benchmarks.rules.choice_items import ChoiceItem
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

QUESTIONS = {
    "coco_one": "coco_qa_one_obj.json",
    "coco_two": "coco_qa_two_obj.json",
    "vg_one": "vg_qa_one_obj.json",
    "vg_two": "vg_qa_two_obj.json",
}
LAYOUT = "a list of [image id, true caption, false caption]"


def read_questions(folder: str, part: str, images: str, coco: str, fix: str) -> list[ChoiceItem]:
    """Reads the questions of a part; `images` has the folder `vg_images`, `coco` the images."""
    path = Path(folder, QUESTIONS[part])
    questions = read_json(path, LAYOUT, fix, list[tuple[int, Text, Text]])
    items = []
    for number, true, false in questions:
        image = Path(images, "vg_images", f"{number}.jpg")
        # COCO pads its ids to twelve digits, Visual Genome does not.
        if part.startswith("coco"):
            image = Path(coco, f"{number:012d}.jpg")
        items.append(ChoiceItem(ImageRef(image), (true, false), part))
    return items
