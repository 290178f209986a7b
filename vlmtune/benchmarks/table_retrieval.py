"""Your own table of images and captions, each ranked among all of the other side.

In: the table. Out: items of the ranking rule.

File: a table with the columns image and caption. Rows of one image are one image with all their
captions. Formats and names of columns are those of `vlmtune build table`.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.rules.ranking import CaptionedImage, Ranking
from vlmtune.benchmarks.table_files import TableOptions, fixture_table, image_ref, texts_of
from vlmtune.types import ImageRef


class TableRetrieval(TableOptions, Ranking):
    """Recall at 1, 5 and 10 among the images and captions of the table, both ways."""

    kind = "retained"
    asks = "retrieval"
    citation = "Recalls as in Karpathy and Fei-Fei 2015, 4.1"

    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "TableRetrieval":
        rows = [
            ("a.png", '["a dog runs", "a dog on grass"]'),
            ("b.png", "a cat sleeps"),
            ("a.png", "a brown dog"),
            ("c.png", "a red car"),
        ]
        return cls(fixture_table(folder, ("image", "caption"), rows))

    @override
    def read(self) -> list[CaptionedImage]:
        captions: dict[ImageRef, list[str]] = {}
        for row in self.measured_rows():
            image = image_ref(row.image, row)
            # Rows of one image are one query; a caption in two of them counts once.
            texts = captions.setdefault(image, [])
            for text in texts_of(row, negatives=False):
                if text not in texts:
                    texts.append(text)
        return [CaptionedImage(image, tuple(texts)) for image, texts in captions.items()]
