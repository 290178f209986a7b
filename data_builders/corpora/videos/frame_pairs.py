"""The base of EqBen's builders from videos (Wang et al. 2023, section 4.2 and appendix B).

In: pairs of moments with captions. Out: EqBen's file of items, the frames, and a table of the same
pairs for training. Never: a pair with one caption for both frames.
"""

import csv
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge
from PIL import Image
from pydantic import AllowInfNan, PositiveInt
from typing_extensions import override

from data_builders.corpora.videos.frames import (
    Moment,
    UnreadableVideoError,
    find_videos,
    read_frames,
    shows_face,
)
from data_builders.shard_builder import Builder
from vlmtune.errors import UserError

TABLE = "pairs.csv"
COLUMNS = ("image", "caption", "negative_image", "negative")
_QUALITY = 95  # of JPEG
Seconds = Annotated[float, Ge(0), AllowInfNan(False)]


@dataclass(frozen=True)
class FramePair:
    """Two frames of a video, each with its caption."""

    first: Moment
    second: Moment
    captions: tuple[str, str]


@dataclass(frozen=True)
class Clip:
    """The pairs of a video; `subject` is the object they are about, where a file names one."""

    video: str
    pairs: tuple[FramePair, ...]
    subject: str = ""


class FramePairs(Builder):
    """Frames of videos as pairs of images and captions, in EqBen's layout.

    Writes the items of EqBen's part, their frames under `images`, and `pairs.csv`, which `build
    table` turns into groups of 2 x 2. Videos that are missing or cannot be decoded are counted.

    Args:
        annotations: The annotation file, as distributed.
        videos: Folder of the videos; each file has the name of its video.
        limit: Maximum number of pairs of a video; None for all.
        faces: Whether to include frames with a face; without them OpenCV is needed.
    """

    part: ClassVar[str]

    def __init__(
        self, annotations: Path, videos: Path, limit: PositiveInt | None = None, faces: bool = True
    ) -> None:
        self.annotations, self.videos = Path(annotations), Path(videos)
        self.limit, self.faces = limit, faces

    @abstractmethod
    def clips(self) -> Iterator[Clip]:
        """Yields the pairs of each video; `counts` says what was left out."""

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        files = find_videos(self.videos)
        content: dict[str, Any] = {}
        rows: list[list[str]] = []
        for clip in self.clips():
            frames = self._frames(files, clip)
            pairs = [p for p in clip.pairs if p.first in frames and p.second in frames]
            items = []
            for pair in pairs[: self.limit]:
                images = []
                for moment in (pair.first, pair.second):
                    name = f"{self.part}/{clip.video}/{moment.name}.jpg"
                    _save(frames[moment], folder / "images" / name)
                    images.append(name)
                items.append(self._item(images, pair.captions))
                rows.append([images[0], pair.captions[0], images[1], pair.captions[1]])
                tick()
            if items:
                self._add(content, clip, items)
        if not rows:
            counted = ", ".join(f"{name} {number}" for name, number in self.counts.items())
            raise UserError(
                f"expected pairs of frames of videos in {self.videos}, got none ({counted or 'no'} "
                f"clips in {self.annotations}): correct the paths"
            )
        self.counts["pairs"] = len(rows)
        (folder / f"{self.part}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
        with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])

    def _frames(self, files: dict[str, Path], clip: Clip) -> dict[Moment, Image.Image]:
        """The frames that may be used."""
        if clip.video not in files:
            self.counts["skipped: video missing"] += 1
            return {}
        wanted: set[Moment] = set()
        for pair in clip.pairs:
            wanted |= {pair.first, pair.second}
        try:
            frames = read_frames(files[clip.video], wanted)
        except UnreadableVideoError:
            self.counts["skipped: video cannot be decoded"] += 1
            return {}
        if self.faces:
            return frames
        kept = {moment: image for moment, image in frames.items() if not shows_face(image)}
        self.counts["skipped: frame with a face"] += len(frames) - len(kept)
        return kept

    def _item(self, images: Sequence[str], captions: Sequence[str]) -> dict[str, Any]:
        named = {f"image{i}": name for i, name in enumerate(images)}
        return named | {f"caption{i}": caption for i, caption in enumerate(captions)}

    def _add(self, content: dict[str, Any], clip: Clip, items: list[dict[str, Any]]) -> None:
        content.setdefault(clip.video, []).extend(items)


def _save(image: Image.Image, path: Path) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=_QUALITY)
