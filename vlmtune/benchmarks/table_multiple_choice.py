"""Your own table of an image, a caption and hard-negative captions a row.

In: the table. Out: items of the multiple-choice rule.

File: a table with the columns image, caption and negative, each of one or several captions. Formats
and names of columns are those of `vlmtune build table`.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.benchmarks.table_files import TableOptions, fixture_table, image_ref, texts_of


class TableMultipleChoice(TableOptions, MultipleChoice):
    """How often a caption scores higher than all hard negatives of its row, also by `group`.

    Each caption of a row is an item.
    """

    asks = "edited captions"
    citation = "Accuracy as in Hsieh et al. 2023, section 4"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "TableMultipleChoice":
        rows = [
            ("a.png", "a dog on a mat", '["a mat on a dog", "a cat on a mat"]'),
            ("b.png", '["a red cup", "a cup that is red"]', "a blue cup"),
            ("a.png", "a pet on a mat", "a mat on a pet"),
        ]
        return cls(fixture_table(folder, ("image", "caption", "negative"), rows))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for row in self.measured_rows():
            image = image_ref(row.image, row)
            negatives = texts_of(row, negatives=True)
            for caption in texts_of(row, negatives=False):
                items.append(ChoiceItem(image, (caption, *negatives), row.group))
        return items
