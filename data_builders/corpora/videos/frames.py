"""Single frames of videos.

In: a file and moments. Out: their frames. Never: a frame that was only guessed.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vlmtune.errors import UserError, imported
from vlmtune.storage.files import regular

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")


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
    files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES)
    videos = {path.stem: path for path in files}
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
    import numpy as np

    gray = np.asarray(image.convert("L"))
    return len(_cascade().detectMultiScale(gray, scaleFactor=1.1, minNeighbors=5)) > 0


@functools.cache
def _cascade() -> Any:
    cv2 = _library("cv2")
    return cv2.CascadeClassifier(f"{cv2.data.haarcascades}haarcascade_frontalface_default.xml")


def _library(name: str) -> Any:
    return imported(name, "to read videos", "pip install 'vlmtune[videos]'")
