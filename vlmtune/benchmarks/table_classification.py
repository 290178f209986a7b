"""Your own table of images, each classified by the captions of the whole table.

In: the table. Out: items of the classification rule.

File: a table with the columns image and caption; the caption is the prompt of the image's class.
Formats and names of columns are those of `vlmtune build table`.
"""

from functools import cached_property
from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.rules.classification import Candidate, Classification, ClassItem
from vlmtune.benchmarks.table_files import TableOptions, fixture_table, image_ref, texts_of
from vlmtune.data.table_rows import TableRow
from vlmtune.errors import UserError


class TableClassification(TableOptions, Classification):
    """How often an image's own caption scores highest among all captions, also by `group`.

    The candidates are the distinct captions of the measured rows, so few and short ones are meant,
    such as "a photo of a dog".
    """

    kind = "retained"
    asks = "classification"
    citation = "Accuracy as in Radford et al. 2021, section 3.1"

    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "TableClassification":
        rows = [
            ("a.png", "a photo of a dog", "indoors"),
            ("b.png", "a photo of a dog", "outdoors"),
            ("c.png", "a photo of a cat", "indoors"),
            ("d.png", "a photo of a red car", "outdoors"),
        ]
        return cls(fixture_table(folder, ("image", "caption", "group"), rows))

    @override
    def read(self) -> list[ClassItem]:
        items = []
        for row in self._rows:
            caption = _caption(row)
            item = ClassItem(
                image=image_ref(row.image, row),
                label=caption,
                group=row.group,
                cluster=caption,
            )
            items.append(item)
        return items

    @override
    def candidates(self, group: str) -> list[Candidate]:
        captions = sorted({_caption(row) for row in self._rows})
        return [Candidate((caption,), caption, caption) for caption in captions]

    @cached_property
    def _rows(self) -> list[TableRow]:
        return self.measured_rows()


def _caption(row: TableRow) -> str:
    caption, *others = texts_of(row, negatives=False)
    if others:
        raise UserError(
            f"expected one caption in {row.where}, the image's class, got "
            f"{1 + len(others)}: leave one in the row, or use table_retrieval"
        )
    return caption
