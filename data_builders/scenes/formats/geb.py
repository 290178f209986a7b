"""GEB+'s annotations (Wang et al. 2022): what is so before and after a boundary of a video."""

from collections.abc import Sequence
from typing import Any

from data_builders.scenes.drawing import Drawn
from data_builders.scenes.videos import FPS, FRAMES, Videos, subject


def boundaries(drawn: Sequence[Drawn], series: Videos) -> dict[str, list[dict[str, Any]]]:
    """Returns the boundaries by video: its folder's name and one change each.

    A boundary lies in the middle between the last frame before it and the first after it.
    """
    content: dict[str, list[dict[str, Any]]] = {}
    for k in range(0, len(drawn), FRAMES):
        video, first = drawn[k].file.split("/")[-2], series.boundary(k // FRAMES)
        what = subject(drawn[k].scene)
        before, after = (drawn[k + at].scene.objects[0].color for at in (first - 1, first))
        row = {
            "boundary_id": f"{video}_0",
            "timestamp": (first - 0.5) / FPS,
            "subject": f"the {what}",
            "status_before": f"is {before}",
            "status_after": f"is {after}",
            "label": "Change of Color",
        }
        content[video] = [row]
    return content


def frames(
    videos: int, root: str = "geb", each: int = FRAMES, kind: str = "png"
) -> tuple[str, ...]:
    """Returns the files of the frames of so many videos, relative to the images folder.

    Example:
        >>> frames(1, each=2)
        ('geb/video_0000/video_0000_00001.png', 'geb/video_0000/video_0000_00002.png')
    """
    return tuple(
        f"{root}/video_{video:04d}/video_{video:04d}_{frame:05d}.{kind}"
        for video in range(videos)
        for frame in range(1, each + 1)
    )
