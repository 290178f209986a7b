"""A folder of images with a text file beside each goes in, one record an image comes out."""

from data_builders.table import TableBuilder


class FolderBuilder(TableBuilder):
    """Images with captions beside them: `a.jpg` with `a.txt`, a caption a line, or with `a.json`.

    The keys of a `.json` are the columns of a table, such as `{"caption": ["a dog"], "negative":
    "a cat"}`. Images in the folders train, val and test are of that split. See `TableBuilder`.
    """
