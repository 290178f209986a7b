"""A page of search results: the images that were found for each query, best first.

In: queries with image files and their scores. Out: one HTML page with the pictures inside. Never: a
request to another host, or an error for an image that is gone.
"""

from collections.abc import Sequence
from pathlib import Path

from vlmtune.report.html import render
from vlmtune.report.media import data_uri
from vlmtune.types import ImageRef


def search_page(results: Sequence[tuple[str, Sequence[tuple[Path, float]]]], note: str) -> str:
    """Returns the page; each query has its images with their scores, and `note` stands below.

    Example:
        >>> page = search_page([("a cat", [(Path("cat.png"), 0.5)])], "of 1 image")
        >>> "<h1>a cat</h1>" in page, "cat.png" in page
        (True, True)
    """
    queries = []
    for query, hits in results:
        shown = []
        for path, score in hits:
            picture = data_uri(ImageRef(path))
            shown.append({"name": path.name, "path": path, "score": score, "picture": picture})
        queries.append({"text": query, "hits": shown})
    return render("search.html", queries=queries, note=note)
