"""Retrievals to look at, right and wrong marked, within a number of pictures a page can hold."""

from collections.abc import Sequence
from typing import Any

from vlmtune.report.result import Example, Result
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import series
from vlmtune.report.thumbnails import data_uri
from vlmtune.types import ImageRef

PICTURES = 600  # on a page; about 7 MB of photographs
BEST = 6  # of one retrieval


class Gallery:
    """The examples of all runs that are not blind, each picture read once.

    Where they hold more than `PICTURES`, every benchmark of every run gets the same share, right
    and wrong examples in turns, and at least one of each.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Sequence[RunReport]) -> None:
        self._runs = runs
        held = [
            sum(min(BEST, len(example.images)) for example in result.examples)
            for run in runs
            if not run.text_only
            for result in run.results
        ]
        self._share = _share(held, PICTURES)
        self._read: dict[ImageRef, str | None] = {}

    def of(self, benchmark: str, version: str, convention: str) -> list[dict[str, Any]]:
        """The examples of a benchmark, run by run."""
        wanted = (benchmark, version, convention)
        return [
            self._group(run, colour, result)
            for run, colour in zip(self._runs, series(self._runs), strict=True)
            if not run.text_only
            for result in run.results
            if (result.benchmark, result.version, result.convention) == wanted and result.examples
        ]

    def _group(self, run: RunReport, colour: int, result: Result) -> dict[str, Any]:
        shown = _chosen(result.examples, self._share)
        return {
            "name": run.name,
            "series": colour,
            "right": sum(example.correct for example in shown),
            "left_out": len(result.examples) - len(shown),
            "many": max(len(example.images) for example in shown) > 2,
            "examples": [self._example(example) for example in shown],
        }

    def _example(self, example: Example) -> dict[str, Any]:
        rows = list(zip(example.images, example.scores, example.true, strict=True))[:BEST]
        return {
            "query": example.query,
            "correct": example.correct,
            "images": [
                {
                    "uri": self._uri(image),
                    "name": image.path.name,
                    "score": f"{score:.3g}",
                    "true": true,
                }
                for image, score, true in rows
            ],
        }

    def _uri(self, image: ImageRef) -> str | None:
        if image not in self._read:
            self._read[image] = data_uri(image)
        return self._read[image]


def _share(held: Sequence[int], most: int) -> int:
    """The largest share of each that together make at most `most`; what one leaves others use.

    Example:
        >>> _share([2, 10, 10], 12), _share([2, 3], 12)
        (5, 12)
    """
    left = most
    for place, least in enumerate(sorted(held)):
        share = left // (len(held) - place)
        if least > share:
            return share
        left -= least
    return most


def _chosen(examples: Sequence[Example], pictures: int) -> list[Example]:
    """Right and wrong ones in turns while they fit; the order stays."""
    places = range(len(examples))
    kinds = [[i for i in places if examples[i].correct == correct] for correct in (True, False)]
    turns = [
        kind[turn] for turn in range(max(map(len, kinds))) for kind in kinds if turn < len(kind)
    ]
    kept: list[int] = []
    for i in turns:
        pictures -= min(BEST, len(examples[i].images))
        if pictures < 0 and len(kept) >= sum(map(bool, kinds)):
            break
        kept.append(i)
    return [examples[i] for i in sorted(kept)]
