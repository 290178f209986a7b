"""Frames of videos, and the base of EqBen's builders from videos (Wang et al. 2023).

In: pairs of moments with captions, and videos. Out: EqBen's file of items, the frames, and a table
of the same pairs for training. Never: a pair with one caption for both frames, or a frame that was
only guessed. The builders are those of section 4.2 and appendix B.
"""

import functools
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge
from PIL import Image
from pydantic import AllowInfNan, PositiveInt
from typing_extensions import override

from data_builders.shard_builder import Builder
from data_builders.text_files import csv_table
from vlmtune.errors import UserError, imported
from vlmtune.storage.files import regular

TABLE = "pairs.csv"
COLUMNS = ("image", "caption", "negative_image", "negative")
SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")
_QUALITY = 95  # of JPEG
Seconds = Annotated[float, Ge(0), AllowInfNan(False)]


class UnreadableVideoError(ValueError):
    """A file that PyAV cannot decode, or that ends before a wanted frame."""


@dataclass(frozen=True, order=True)
class Moment:
    """A frame of a video: by its number, from 1, or the one shown at a time in seconds."""

    number: int | None = None
    seconds: float | None = None

    @property
    def name(self) -> str:
        """The name of its file, without the suffix.

        Example:
            >>> Moment(number=12).name, Moment(seconds=2.5).name
            ('000012', '000002500ms')
        """
        if self.number is not None:
            return f"{self.number:06d}"
        return f"{round(1000 * (self.seconds or 0.0)):09d}ms"


def find_videos(folder: Path) -> dict[str, Path]:
    """Returns the video files in a folder and its subfolders, by name without suffix."""
    videos = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES:
            videos[path.stem] = path
    if not videos:
        raise UserError(
            f"expected videos ({', '.join(SUFFIXES)}) in {folder}, got none: name their folder"
        )
    return videos


def read_frames(path: Path, moments: Iterable[Moment]) -> dict[Moment, Image.Image]:
    """Decodes the wanted frames of a video in one pass.

    Raises:
        UnreadableVideoError: The video cannot be decoded, or ends before one of the frames.
        UserError: PyAV is not installed.
    """
    av = _library("av")
    wanted = set(moments)
    frames: dict[Moment, Image.Image] = {}
    try:
        with av.open(str(regular(path))) as container:
            previous: Any = None
            for number, frame in enumerate(container.decode(video=0), start=1):
                for moment in wanted - frames.keys():
                    if moment.number == number:
                        frames[moment] = frame.to_image()
                    elif moment.seconds is not None and frame.time > moment.seconds:
                        frames[moment] = (previous or frame).to_image()
                if len(frames) == len(wanted):
                    return frames
                previous = frame
    except (av.FFmpegError, OSError, IndexError, TypeError) as error:
        raise UnreadableVideoError(f"{path}: {error}") from error
    if previous is None:
        raise UnreadableVideoError(f"{path} has no frame")
    end = previous.time + float((previous.duration or 0) * previous.time_base)
    for moment in wanted - frames.keys():  # the last frame is shown to the end of the video
        if moment.number is not None or end < (moment.seconds or 0):
            raise UnreadableVideoError(f"{path} ends before {moment}")
        frames[moment] = previous.to_image()
    return frames


def shows_face(image: Image.Image) -> bool:
    """Tells whether OpenCV's cascade of frontal faces finds one."""
    gray = np.asarray(image.convert("L"))
    return len(_cascade().detectMultiScale(gray, scaleFactor=1.1, minNeighbors=5)) > 0


@functools.cache
def _cascade() -> Any:
    cv2 = _library("cv2")
    return cv2.CascadeClassifier(f"{cv2.data.haarcascades}haarcascade_frontalface_default.xml")


def _library(name: str) -> Any:
    return imported(name, "to read videos", "pip install 'vlmtune[videos]'")


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
        (folder / TABLE).write_text(csv_table(COLUMNS, rows), encoding="utf-8")

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
