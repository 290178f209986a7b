"""Retrievals to look at, within a number of pictures that a page can hold."""

from collections.abc import Sequence
from typing import Any

from vlmtune.report.media import Thumbnails
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
        sizes = [
            sum(min(BEST, len(example.images)) for example in result.examples)
            for run in runs
            if not run.text_only
            for result in run.results
        ]
        self._quota = quota(sizes, PICTURES)
        self._uri = Thumbnails()

    def of(self, benchmark: str, version: str, convention: str) -> list[dict[str, Any]]:
        """The examples of a benchmark, run by run."""
        key = (benchmark, version, convention)
        return [
            self._group(run, colour, result)
            for run, colour in zip(self._runs, colours(self._runs), strict=True)
            if not run.text_only
            for result in run.results
            if (result.benchmark, result.version, result.convention) == key and result.examples
        ]

    def _group(self, run: RunReport, colour: int, result: Result) -> dict[str, Any]:
        shown = _select(result.examples, self._quota)
        return {
            "name": run.name,
            "colour": colour,
            "paired": MATRIX in result.series,  # an item has two captions
            "right": sum(example.correct for example in shown),
            "left_out": len(result.examples) - len(shown),
            "many": max(len(example.images) for example in shown) > 2,
            "examples": [self._example(example) for example in shown],
        }

    def _example(self, example: Example) -> dict[str, Any]:
        rows = list(zip(example.images, example.scores, example.true, strict=True))[:BEST]
        images = [
            {
                "uri": self._uri(image),
                "name": image.path.name,
                "score": f"{score:.3g}",
                "true": true,
            }
            for image, score, true in rows
        ]
        return {"query": example.query, "correct": example.correct, "images": images}


def quota(sizes: Sequence[int], most: int) -> int:
    """The largest equal quota that fits into `most`; quotas not used up go to the others.

    Example:
        >>> quota([2, 10, 10], 12), quota([2, 3], 12)
        (5, 12)
    """
    left = most
    for i, size in enumerate(sorted(sizes)):
        equal = left // (len(sizes) - i)
        if size > equal:
            return equal
        left -= size
    return most


def _select(examples: Sequence[Example], pictures: int) -> list[Example]:
    """Alternates right and wrong examples while they fit; keeps their order."""
    positions = range(len(examples))
    kinds = [[i for i in positions if examples[i].correct == correct] for correct in (True, False)]
    turns = [
        kind[turn] for turn in range(max(map(len, kinds))) for kind in kinds if turn < len(kind)
    ]
    selected: list[int] = []
    for i in turns:
        pictures -= min(BEST, len(examples[i].images))
        if pictures < 0 and len(selected) >= sum(map(bool, kinds)):
            break
        selected.append(i)
    return [examples[i] for i in sorted(selected)]
