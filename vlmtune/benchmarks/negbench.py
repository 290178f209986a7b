"""NegBench, multiple choice: captions that say what is in an image and what is not.

In: the csv and a folder of images. Out: items of the multiple-choice rule.

Files: `COCO_val_mcq_llama3.1_rephrased.csv`, `VOC2007_mcq_llama3.1_rephrased.csv` and others of
their layout: `image_path` or `filepath`, of which only the file name counts, `caption_0`,
`caption_1`, ... (four, in binary sets two), `correct_answer` (the number of the true one) and
`correct_answer_template`: positive, negative or hybrid. Source: Alhamoud et al. 2025.
"""

from itertools import count
from pathlib import Path, PureWindowsPath
from typing import Literal

from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import read_csv, write_csv, write_image
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.storage.files import check_shape, reading
from vlmtune.types import ImageRef

SOURCE = "vlmtune download negbench"
COLUMNS = ("caption_0", "caption_1", "correct_answer")


class _TrueFirst(TypedDict):
    """A row in which argmax gives a tie to the true caption."""

    correct_answer: Literal["0"]


class NegBench(MultipleChoice):
    """Accuracy over all items and by the template of the true caption.

    - `accuracy`: over all items; chance 1/4, of two captions 1/2.
    - `accuracy/positive`, `/negative`, `/hybrid`: where the true caption says what there is, what
      there is not, or both; `macro_accuracy`: the mean over the templates.

    Conventions: "strict": a tie is wrong. "reference", as in the released script: a tie is right,
    since argmax takes the first caption, and every published row has its true caption first
    (`correct_answer` is 0). A model that scores all captions alike reaches 1 there, and 0 in
    "strict". A file with other rows is an error there.

    Args:
        images: The folder with the image files: COCO val2017, or JPEGImages of VOC 2007.
    """

    reference_ties = "right"
    full_name = "NegBench"
    asks = "negation"
    citation = "Alhamoud et al. 2025, NegBench (multiple choice, accuracy)"
    source = SOURCE

    path: str
    images: str
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "NegBench":
        captions = {
            "positive": ("a dog on grass", "a cat on grass", "no dog", "grass but no dog"),
            "negative": ("there is no cat", "there is no dog", "a cat", "a cat but no dog"),
            "hybrid": ("a dog but no cat", "a cat but no dog", "no dog", "a cat"),
        }
        rows = []
        for number, (template, texts) in enumerate(captions.items()):
            name = f"{number // 2:012d}.jpg"
            write_image(folder / name, 90 * number, 20, 90)
            rows.append((f"/data/coco/val2017/{name}", *texts, 0, template))
        columns = ("image_path", *(f"caption_{i}" for i in range(4)))
        columns += ("correct_answer", "correct_answer_template")
        return cls(write_csv(folder / "COCO_val_mcq.csv", columns, rows), str(folder))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        rows = read_csv(self.path, COLUMNS, self.source)
        if not self.strict:
            layout = 'true captions that are the first, as "reference" needs'
            check_shape(rows, list[_TrueFirst], self.path, layout, 'choose "strict"')
        with reading(self.path, "an image, captions and a true one", self.fix):
            for row in rows:
                captions = _captions(row)
                # Candidates are the true caption and then the others.
                true = row[f"caption_{int(row['correct_answer'])}"]
                captions.remove(true)
                group = row.get("correct_answer_template", "")
                image = image_of(row, self.images)
                items.append(ChoiceItem(image, (true, *captions), group))
        return items


def image_of(row: dict[str, str], folder: str) -> ImageRef:
    """The image of a row; its path is one of the authors' machine."""
    path = row["image_path"] if "image_path" in row else row["filepath"]
    return ImageRef(Path(folder, PureWindowsPath(path).name))


def _captions(row: dict[str, str]) -> list[str]:
    captions = []
    for number in count():
        caption = row.get(f"caption_{number}")
        if caption is None:
            return captions
        captions.append(caption)
    return captions
