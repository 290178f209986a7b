"""A folder of images, each with a file of captions.

In: the folder. Out: one record an image; see `table`.
"""

from data_builders.corpora.table import TableBuilder


class FolderBuilder(TableBuilder):
    """Images with caption files: `a.jpg` with `a.txt`, one caption a line, or with `a.json`.

    The keys of a `.json` are the columns of a table, such as `{"caption": ["a dog"], "negative":
    "a cat"}`. Images in the folders train, val and test are of that split. See `TableBuilder`.
    """
