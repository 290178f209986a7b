"""A page of search results: the images that were found for each query, best first.

In: queries with image files and their scores. Out: one HTML page with the pictures inside. Never: a
request to another host, or an error for an image that is gone.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vlmtune.report.html import render
from vlmtune.report.media import SIDE, data_uri
from vlmtune.types import ImageRef

ENLARGED = 640
"""Pixels of the longer side of a found image, which the page shows small until it is clicked."""


def search_page(
    results: Sequence[tuple[str, Sequence[tuple[Path, float]]]],
    similar: Mapping[Path, Sequence[Path]],
    note: str,
) -> str:
    """Returns the page; each query has its images with their scores, and `note` stands below.

    A click enlarges an image, and shows the images of `similar` that are most like it.

    Example:
        >>> page = search_page([("a cat", [(Path("cat.png"), 0.5)])], {}, "of 1 image")
        >>> "<h1>a cat</h1>" in page, "cat.png" in page
        (True, True)
    """

    # A file may be found by several queries, and be like several others: it is read once a size.
    @cache
    def shown(path: Path, side: int = SIDE) -> dict[str, Any]:
        return {"name": path.name, "path": path, "picture": data_uri(ImageRef(path), side)}

    queries = []
    for query, hits in results:
        cards = []
        for path, score in hits:
            hit = shown(path, ENLARGED) | {"score": score}
            hit["similar"] = [shown(other) for other in similar.get(path, ())]
            cards.append(hit)
        queries.append({"text": query, "hits": cards})
    return render("search.html", queries=queries, note=note)
