"""Your own table of an image, a true caption and false ones: abilities from before training.

In: the table. Out: items of the multiple-choice rule.

File: a table as `table_multiple_choice` reads it. Only what reports call it differs.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.table_files import fixture_table
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice


class TableAbilities(TableMultipleChoice):
    """Accuracy as of `TableMultipleChoice`; a fall below the frozen model is forgetting.

    For what the model could do before training and training does not ask for, such as the words of
    sizes and textures where all training scenes are large and plain.
    """

    kind = "retained"
    asks = "recognition"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "TableAbilities":
        rows = [
            ("a.png", "a photo of a small dog", "a photo of a large dog"),
            ("b.png", "a photo of a large cup", "a photo of a small cup"),
            ("c.png", "an image of a cat", '["an image of a dog", "an image of a cup"]'),
        ]
        return cls(fixture_table(folder, ("image", "caption", "negative"), rows))
