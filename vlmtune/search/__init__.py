"""Many images: encoded once into a folder, then found by captions.

In: image files and a model; later a caption. Out: the files that fit it best, with their scores.
Never: an image read again to answer a query, or anything unpickled.
"""

from vlmtune.search.build import build_index
from vlmtune.search.index import Hit, Index

__all__ = ["Hit", "Index", "build_index"]
