"""EqBen's pairs of frames from YouCook2 (Wang et al. 2023, appendix B.3).

In: steps of recipes, and videos. Out: pairs of frames with captions.
"""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from pydantic import PositiveInt
from typing_extensions import TypedDict, override

from data_builders.corpora.frame_pairs import Clip, FramePair, FramePairs, Moment, Seconds
from vlmtune.storage.files import read_json

LAYOUT = "YouCook2's youcookii_annotations_trainval.json"


class Segment(TypedDict):
    """A step of a recipe, from its start to its end in seconds."""

    segment: tuple[Seconds, Seconds]
    sentence: str


class Video(TypedDict):
    """The steps of a video."""

    annotations: list[Segment]


class Annotations(TypedDict):
    """The videos by their ids."""

    database: dict[str, Video]


class YouCook2Pairs(FramePairs):
    """The middle frames of two steps of a recipe (Eq-YouCook2).

    Every two steps of a video with different captions make a pair. Frames with a face are left out,
    by OpenCV's cascade. Appendix B.3 takes the detector face_recognition, and section 4.1 speaks of
    object detectors that filter changes of scene, which appendix B.3 does not mention and this
    builder does not do. So EqBen's choice of frames is not repeated exactly.

    Args:
        annotations: `youcookii_annotations_trainval.json`.
        videos: Folder of the videos, named as in the annotations, subfolders included.
        limit: Maximum number of pairs of a video; None for all.
        faces: Whether to include frames with a face; without them OpenCV is needed.
    """

    part = "eqbenyoucook2"

    def __init__(
        self, annotations: Path, videos: Path, limit: PositiveInt | None = None, faces: bool = False
    ) -> None:
        super().__init__(annotations, videos, limit, faces)

    @override
    def clips(self) -> Iterator[Clip]:
        content = read_json(self.annotations, LAYOUT, shape=Annotations)
        for video, steps in content["database"].items():
            pairs = tuple(
                FramePair(_middle(a), _middle(b), (a["sentence"], b["sentence"]))
                for a, b in combinations(steps["annotations"], 2)
                if a["sentence"] != b["sentence"]
            )
            if pairs:
                yield Clip(video, pairs)


def _middle(step: Segment) -> Moment:
    return Moment(seconds=sum(step["segment"]) / 2)
