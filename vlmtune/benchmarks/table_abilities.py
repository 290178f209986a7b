"""Your own table of an image, a true caption and false ones: abilities from before training.

In: the table. Out: items of the multiple-choice rule.

File: a table as `table_multiple_choice` reads it. Only what reports call it differs.
"""

from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice


class TableAbilities(TableMultipleChoice):
    """Accuracy as of `TableMultipleChoice`; a fall below the frozen model is forgetting.

    For what the model could do before training and training does not ask for, such as the words of
    sizes and textures where all training scenes are large and plain.
    """

    kind = "retained"
    asks = "recognition"
