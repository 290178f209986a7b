"""GEB+'s annotations and the frames of its videos, as video boundary grounding reads them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from vlmtune.benchmarks.files import SUFFIXES, read_json
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

LAYOUT = "JSON `{video: [{timestamp, subject, status_before, status_after, ...}]}`"
FIELDS = ("subject", "status_before", "status_after", "action_of_cause", "label")
LATE = 1.0  # seconds that a boundary may lie after the last frame


@dataclass(frozen=True)
class Boundary:
    """A moment of a video at which something changes.

    Attributes:
        video: Name of the video.
        time: When, in seconds.
        before: Caption of what is before it.
        after: Caption of what is after it.
    """

    video: str
    time: float
    before: str
    after: str


def check_template(template: str) -> None:
    """Raises `UserError` unless a template names fields, and only those of a boundary."""
    try:
        named = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError:
        named = set()
    if not named or not named <= set(FIELDS):
        raise UserError(
            f"expected a template with some of {{{'}, {'.join(FIELDS)}}}, got {template!r}: "
            "correct it"
        )


def read_boundaries(path: Path, before: str, after: str) -> list[Boundary]:
    """Reads all boundaries, in the order of the file.

    Args:
        path: The annotations.
        before: Template of the caption of what is before, with names of `FIELDS` in braces.
        after: Template of the caption of what is after.
    """
    content = read_json(path, LAYOUT)
    if not isinstance(content, dict) or not all(isinstance(x, list) for x in content.values()):
        raise UserError(f"expected {LAYOUT} in {path}, got another layout: pass GEB+'s file")
    return [
        _boundary(path, video, i, row, (before, after))
        for video, rows in content.items()
        for i, row in enumerate(rows)
    ]


def _boundary(path: Path, video: str, i: int, row: Any, templates: tuple[str, str]) -> Boundary:
    row = row if isinstance(row, dict) else {}
    time = row.get("timestamp")
    timed = isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < math.inf
    before, after = (_filled(template, row) for template in templates)
    if not timed or not before or not after:
        raise UserError(
            f"expected {LAYOUT} in {path}, got boundary {i} of {video!r} without a time or a "
            "caption: correct it, or name fields it has in `before` and `after`"
        )
    return Boundary(video, float(time), before, after)


def _filled(template: str, row: dict[str, Any]) -> str:
    """A template with the fields of a boundary; "" where it lacks one."""
    needed = [field for _, field, _, _ in Formatter().parse(template) if field]
    if not all(isinstance(row.get(field), str) for field in needed):
        return ""
    return " ".join(template.format_map(row).split())


def read_frames(
    folder: Path, queries: Sequence[Boundary], fps: float, source: str
) -> dict[str, tuple[ImageRef, ...]]:
    """The frames of the videos of the queries, in the order of their numbers.

    Args:
        folder: The folder with a folder of frames for each video.
        queries: The boundaries.
        fps: Frames a second.
        source: Where to get the videos, for the error.
    """
    videos = dict.fromkeys(query.video for query in queries)
    frames = {video: _frames(folder / video) for video in videos}
    short = [video for video, refs in frames.items() if len(refs) < 2]
    if short:
        raise UserError(
            f"expected a folder with frames for each of {len(frames)} videos in {folder}, "
            f"{len(short)} have fewer than two, first {short[0]!r}: extract them from the videos "
            f"({source}), or correct `frames`"
        )
    for query in queries:
        count = len(frames[query.video])
        if query.time > count / fps + LATE:
            raise UserError(
                f"expected frames of {query.video!r} up to its boundary at {query.time:g} s, got "
                f"{count}, which at {fps:g} a second end at {(count - 1) / fps:g} s: "
                "correct `fps`, or extract them again"
            )
    return frames


def _frames(folder: Path) -> tuple[ImageRef, ...]:
    listed = list(folder.iterdir()) if folder.is_dir() else []
    paths = [path for path in listed if path.suffix.lower() in SUFFIXES]
    digits = [re.search(r"\d+$", path.stem) for path in paths]
    numbered = {int(number[0]): path for number, path in zip(digits, paths, strict=True) if number}
    order = sorted(numbered)
    if len(numbered) != len(paths) or (order and order[-1] - order[0] != len(order) - 1):
        raise UserError(
            f"expected frames numbered without gaps in {folder}, got {len(paths)} that are not: "
            "extract them again"
        )
    return tuple(ImageRef(numbered[number]) for number in order)
