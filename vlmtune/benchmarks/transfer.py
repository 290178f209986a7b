"""How far understanding of compositions carries beyond training: dimensions and their parts.

In: a table of `vlmtune build transfer`. Out: items of the multiple-choice rule.

File: a table as `table_multiple_choice` reads it, with groups "dimension/part".
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from vlmtune.benchmarks.table_files import fixture_table
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice


class Transfer(TableMultipleChoice):
    """Accuracy as of `TableMultipleChoice`, also of each dimension; they weigh the same.

    The primary number is the mean over dimensions of the accuracy within each, micro over parts.
    Each part keeps its own number, `accuracy/<dimension>/<part>`, with its own chance.
    """

    full_name: ClassVar[str] = "Transfer"
    asks: ClassVar[str] = "beyond training"
    citation: ClassVar[str] = "this project, docs/experiments.md; macro accuracy over dimensions"
    source: ClassVar[str] = "vlmtune build transfer --out data/transfer"
    primary_metric: ClassVar[str] = "macro_accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Other tables name the column where they have groups; here there always are some.
        self.columns = {"group": "group", **(self.columns or {})}

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "Transfer":
        rows = [
            ("a.png", "a red cube", "a blue cube", "words/colours"),
            ("b.png", "a metal cube", "a rubber cube", "words/materials"),
            ("a.png", "there are two cubes", '["there are three cubes", "one cube"]', "counts/all"),
        ]
        return cls(fixture_table(folder, ("image", "caption", "negative", "group"), rows))

    @override
    def unions(self, groups: Sequence[str]) -> Mapping[str, Collection[str]]:
        dimensions: dict[str, list[str]] = {}
        for group in groups:
            dimension = group.partition("/")[0]
            dimensions.setdefault(dimension, []).append(group)
        return dimensions
