"""Your own table of two images and two captions a row, scored as Winoground is.

In: the table. Out: items of the paired rule.

File: a table with the columns image, negative_image, caption and negative: the caption is true of
the image, the negative caption of the negative image. Formats and names of columns are those of
`vlmtune build table`.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.benchmarks.table_files import TableOptions, fixture_table, image_ref, texts_of


class TablePairs(TableOptions, Paired):
    """Text, image and group accuracy of the rows, also by the column `group`.

    Of a row with several captions the first counts, and so of the negative captions.
    """

    citation = "Accuracies of Thrush et al. 2022, section 3.1"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "TablePairs":
        rows = [
            ("a0.png", "a1.png", "a dog chases a cat", "a cat chases a dog"),
            ("b0.png", "b1.png", "a red cup on a box", "a red box on a cup"),
            ("c0.png", "c1.png", "two cats and a dog", "two dogs and a cat"),
        ]
        columns = ("image", "negative_image", "caption", "negative_caption")
        return cls(fixture_table(folder, columns, rows))

    @override
    def read(self) -> list[PairedItem]:
        items = []
        for row in self.measured_rows():
            first = image_ref(row.image, row)
            second = image_ref(row.negative_image, row)
            caption = texts_of(row, negatives=False)[0]
            negative = texts_of(row, negatives=True)[0]
            items.append(PairedItem((first, second), (caption, negative), row.group))
        return items
