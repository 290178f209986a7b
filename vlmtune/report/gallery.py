"""Retrievals to look at, within a number of pictures that a page can hold.

In: the examples of runs. Out: dictionaries for `page.html`. Never: an image read twice.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice, zip_longest
from typing import Any

from vlmtune.report.media import data_uri
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import colours
from vlmtune.results.result import Example, Result

PICTURES = 600  # on a page; about 7 MB of photographs
BEST = 6  # pictures of one retrieval
MATRIX = "mean_scores"  # the series of two images by two captions, the mean of the items


class Gallery:
    """The examples of all runs but text-only ones; each picture is read once.

    If they hold more than `PICTURES`, every benchmark of every run gets the same number of
    pictures, alternating right and wrong examples, and at least one of each.
    """

    def __init__(self, runs: Sequence[RunReport]) -> None:
        self._runs = runs
        sizes = []
        for run in runs:
            if run.text_only:
                continue
            for result in run.results:
                # Counted before any is read: the quota needs all sizes.
                pictures = map(_pictures, result.examples)
                sizes.append(sum(pictures))
        self._quota = quota(sizes, PICTURES)
        self._uri = cache(data_uri)

    def of(self, benchmark: str, version: str, convention: str) -> list[dict[str, Any]]:
        """The examples of a benchmark, run by run."""
        out = []
        for run, colour in zip(self._runs, colours(self._runs), strict=True):
            if run.text_only:
                continue
            result = run.result(benchmark, version, convention)
            if result is not None and result.examples:
                out.append(self._group(run, colour, result))
        return out

    def _group(self, run: RunReport, colour: int, result: Result) -> dict[str, Any]:
        shown = _select(result.examples, self._quota)
        most_images = max(len(example.images) for example in shown)
        return {
            "name": run.name,
            "colour": colour,
            "paired": MATRIX in result.series,  # an item has two captions
            "right": sum(example.correct for example in shown),
            "left_out": len(result.examples) - len(shown),
            "many": most_images > 2,
            "examples": list(map(self._example, shown)),
        }

    def _example(self, example: Example) -> dict[str, Any]:
        images = []
        retrieved = zip(example.images, example.scores, example.true, strict=True)
        for image, score, true in islice(retrieved, BEST):
            view = {
                "uri": self._uri(image),
                "name": image.path.name,
                "score": f"{score:.3g}",
                "true": true,
            }
            images.append(view)
        return {"query": example.query, "correct": example.correct, "images": images}


def quota(sizes: Sequence[int], most: int) -> int:
    """The largest equal quota that fits into `most`; what one group does not use goes to the rest.

    Example:
        >>> quota([2, 10, 10], 12), quota([2, 3], 12)
        (5, 12)
    """
    # From the smallest on: whoever needs less than an equal part leaves the rest to the larger.
    left = most
    for i, size in enumerate(sorted(sizes)):
        equal = left // (len(sizes) - i)
        if size > equal:
            return equal
        left -= size
    return most


def _select(examples: Sequence[Example], pictures: int) -> list[Example]:
    """Alternates right and wrong examples while they fit; keeps their order."""
    right = []
    wrong = []
    for i, example in enumerate(examples):
        side = right if example.correct else wrong
        side.append(i)
    least = bool(right) + bool(wrong)  # one of each, however many pictures they have
    alternating = chain.from_iterable(zip_longest(right, wrong))
    selected: list[int] = []
    for i in alternating:
        if i is None:  # one kind has no more
            continue
        pictures -= _pictures(examples[i])
        if pictures < 0 and len(selected) >= least:
            break
        selected.append(i)
    return [examples[i] for i in sorted(selected)]


def _pictures(example: Example) -> int:
    return min(BEST, len(example.images))
