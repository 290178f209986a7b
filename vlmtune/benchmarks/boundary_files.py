"""GEB+'s annotations and the frames of its videos, as video boundary grounding reads them.

In: annotations and folders of frames. Out: boundaries with captions, and the frames of each video
in order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from vlmtune.benchmarks.files import SUFFIXES, Text
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

LAYOUT = "JSON `{video: [{timestamp, subject, status_before, status_after, ...}]}`"
LATE = 1.0  # seconds that a boundary may lie after the last frame


class _Boundary(TypedDict):
    """A boundary of a video in the file."""

    timestamp: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    subject: str
    status_before: Text
    status_after: Text


@dataclass(frozen=True)
class CaptionedBoundary:
    """A moment of a video, in seconds, with captions of the states before and after it."""

    video: str
    time: float
    before: str
    after: str


def read_boundaries(path: Path) -> list[CaptionedBoundary]:
    """Reads all boundaries in the order of the file."""
    boundaries = []
    for video, rows in read_json(path, LAYOUT, shape=dict[str, list[_Boundary]]).items():
        for row in rows:
            captions = []
            for status in (row["status_before"], row["status_after"]):
                words = f"{row['subject']} {status}".split()
                captions.append(" ".join(words))
            boundaries.append(CaptionedBoundary(video, float(row["timestamp"]), *captions))
    return boundaries


def read_frames(
    folder: Path, queries: Sequence[CaptionedBoundary], fps: float, source: str
) -> dict[str, tuple[ImageRef, ...]]:
    """Lists the frames of each video of some boundaries, in the order of their numbers."""
    videos = dict.fromkeys(query.video for query in queries)
    frames = {video: _frames(folder / video) for video in videos}
    short = [video for video, refs in frames.items() if len(refs) < 2]
    if short:
        raise UserError(
            f"expected a folder with frames for each of {len(frames)} videos in {folder}, "
            f"{len(short)} have fewer than two, first {short[0]!r}: extract them from the videos "
            f"({source}), or name another folder by `frames`"
        )
    for query in queries:
        count = len(frames[query.video])
        end = (count - 1) / fps
        if query.time > count / fps + LATE:
            raise UserError(
                f"expected frames of {query.video!r} up to its boundary at {query.time:g} s, got "
                f"{count}, which at {fps:g} a second end at {end:g} s: "
                "set `fps` to the rate they were extracted at, or extract them again"
            )
    return frames


def _frames(folder: Path) -> tuple[ImageRef, ...]:
    if not folder.is_dir():
        return ()
    paths = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    by_number: dict[int, Path] = {}
    for path in paths:
        digits = re.search(r"\d+$", path.stem)
        if digits:
            by_number[int(digits[0])] = path
    order = sorted(by_number)
    # A frame's number is its time, so a gap would shift all times after it.
    has_gaps = bool(order) and order[-1] - order[0] != len(order) - 1
    if len(order) != len(paths) or has_gaps:
        raise UserError(
            f"expected frames numbered without gaps in {folder}, got {len(paths)} that are not: "
            "extract them again"
        )
    return tuple(ImageRef(by_number[number]) for number in order)
