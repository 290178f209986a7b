"""EqBen's pairs of frames from GEB+ (Wang et al. 2023, appendix B.2).

In: boundaries of videos, and videos. Out: pairs of frames with captions.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NotRequired

from typing_extensions import TypedDict, override

from data_builders.corpora.frame_pairs import Clip, FramePair, FramePairs, Moment, Seconds
from vlmtune.storage.files import read_json

LAYOUT = "GEB+'s JSON `{video: [{timestamp, subject, status_before, status_after, ...}]}`"
_ACTIONS = re.compile(r"\b(up|down|upward|downward|towards)\b", re.IGNORECASE)


class Boundary(TypedDict):
    """A moment in which the status of a subject changes."""

    timestamp: Seconds
    next_timestamp: NotRequired[Seconds | None]
    subject: str
    status_before: str
    status_after: str


class GebcPairs(FramePairs):
    """Frames before and after two boundaries of a video (Eq-GEBC).

    Boundaries cut a video into segments; frame i is in the middle of segment i. A pair is frame i
    with the status before boundary i, and frame i + 2 with the status after boundary i + 1, as the
    two sides of one boundary look too alike. Captions with words of motion (up, down, upward,
    downward, towards) are left out. EqBen's screening by people is not part of it.

    `annotations` is `trainset_highest_f1.json` or `valset_highest_f1.json` of GEB+ (GEBC), `videos`
    the folder of Kinetics' videos, named as in the annotations.
    """

    part = "eqbengebc"

    @override
    def clips(self) -> Iterator[Clip]:
        content = read_json(self.annotations, LAYOUT, shape=dict[str, list[Boundary]])
        for video, rows in content.items():
            pairs = tuple(self._pairs(sorted(rows, key=lambda row: row["timestamp"])))
            if pairs:
                yield Clip(video, pairs)

    def _pairs(self, rows: list[Boundary]) -> Iterator[FramePair]:
        times = [0.0, *(row["timestamp"] for row in rows)]
        for i, (one, next_one) in enumerate(pairwise(rows)):
            captions = (
                f"{one['subject']} {one['status_before']}",
                f"{next_one['subject']} {next_one['status_after']}",
            )
            last = times[i + 3] if i + 3 < len(times) else next_one.get("next_timestamp")
            if any(map(_ACTIONS.search, captions)):
                self.counts["skipped: word of motion"] += 1
            elif captions[0] == captions[1] or last is None or last <= times[i + 2]:
                self.counts["skipped: same caption, or no segment"] += 1
            else:
                middles = (times[i] + times[i + 1]) / 2, (times[i + 2] + last) / 2
                first, second = (Moment(seconds=middle) for middle in middles)
                yield FramePair(first, second, captions)
