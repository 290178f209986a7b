"""GEB+'s annotations (Wang et al. 2022): the status before and after a boundary of a video.

Rendered videos go in, the content of the file comes out. Never writes files.
"""

from collections.abc import Sequence
from typing import Any

from data_builders.scenes.image_files import SceneImage
from data_builders.scenes.videos import FPS, Videos, subject, video_name


def boundaries(images: Sequence[SceneImage], series: Videos) -> dict[str, list[dict[str, Any]]]:
    """Returns the boundaries by video: the name of its folder and one change each.

    A boundary lies midway between the last frame before it and the first after it.
    """
    content: dict[str, list[dict[str, Any]]] = {}
    for boundary, frames in series.boundaries(images):
        video = video_name(frames[0])
        before, after = (frame.scene.objects[0].color for frame in frames)
        row = {
            "boundary_id": f"{video}_0",
            "timestamp": (boundary - 0.5) / FPS,
            "subject": f"the {subject(frames[0].scene)}",
            "status_before": f"is {before}",
            "status_after": f"is {after}",
            "label": "Change of Color",
        }
        content[video] = [row]
    return content
