"""MMVP-VLM: two images that CLIP takes for alike, and a statement that is true of each.

In: the csv and its images. Out: items of the paired rule.

File: `Questions.csv` with the columns Question ID, Type and Statement, 270 rows in pairs: 15 pairs
of each of nine visual patterns, which `Type` names. The statement of a row is true of the image
`<Type>/<Question ID>.jpg`. Source: Tong et al. 2024, "Eyes Wide Shut?".
"""

from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from vlmtune.benchmarks.files import Prompt, first_file, read_csv, write_csv, write_image
from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.storage.files import reading
from vlmtune.types import ImageRef

COLUMNS = ("Question ID", "Type", "Statement")


class MmvpVlm(Paired):
    """Accuracy over pairs of images, over all and by visual pattern.

    A pair is right where each statement prefers its image, Winoground's image score: `accuracy`
    here, chance 1/4. `text_accuracy` and `group_accuracy` are Winoground's others, not part of
    MMVP-VLM. Each is also reported by pattern, as `accuracy/Texts`; patterns are of one size, so
    the mean over them is `accuracy`.

    A tie is never a win. The released script gives it to the second image, so that its second
    statement wins where scores are equal; with scores of a model that happens hardly ever.

    Args:
        path: The csv.
        images: The folder with a folder of images for each pattern, or with the images.
        prompt: What is scored, with {} for the statement; "{}" for the statement alone. The default
            is that of the released script.
    """

    primary_metric = "accuracy"
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "accuracy", "group_accuracy")
    full_name = "MMVP-VLM"
    asks = "changes of an image"
    citation = "Tong et al. 2024, Eyes Wide Shut? (MMVP-VLM, accuracy of pairs)"
    source = "vlmtune download mmvp_vlm"

    path: str
    images: str
    prompt: Prompt = "a photo of {}"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "MmvpVlm":
        pairs = [
            ("Texts", "a sign without words", "a sign with words"),
            ("Texts", "a red word", "a blue word"),
            ("Quantity and Count", "two dogs", "three dogs"),
        ]
        rows = []
        for pattern, *statements in pairs:
            for statement in statements:
                number = len(rows) + 1
                write_image(folder / "images" / pattern / f"{number}.jpg", 40 * number, 90, 20)
                rows.append((number, pattern, statement))
        path = write_csv(folder / "Questions.csv", COLUMNS, rows)
        return cls(path, str(folder / "images"))

    @override
    def read(self) -> list[PairedItem]:
        items = []
        rows = read_csv(self.path, COLUMNS, self.source)
        with reading(self.path, "two rows a pair, numbered", self.fix):
            # Rows 1 and 2 are a pair, and so on: a lost row would shift all after it.
            by_number = {int(row["Question ID"]): row for row in rows}
            for number in range(1, max(by_number) + 1, 2):
                first = by_number[number]
                second = by_number[number + 1]
                images = (self._image(first), self._image(second))
                texts = (self._text(first), self._text(second))
                items.append(PairedItem(images, texts, first["Type"].strip()))
        return items

    def _image(self, row: dict[str, str]) -> ImageRef:
        # By its number: sorted by name the images are 1, 10, 100, ...
        name = f"{int(row['Question ID'])}.jpg"
        folder = Path(self.images)  # with or without folders of patterns
        return ImageRef(first_file([folder / row["Type"].strip() / name, folder / name]))

    def _text(self, row: dict[str, str]) -> str:
        return self.prompt.format(row["Statement"].strip())
