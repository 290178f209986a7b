"""GEB+'s annotations of boundaries (Wang et al. 2022).

In: rendered videos. Out: the content of the file.
"""

from collections.abc import Sequence
from typing import Any

from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.videos import FPS, Videos, subject, video_name


def boundaries(images: Sequence[SceneImage], series: Videos) -> dict[str, list[dict[str, Any]]]:
    """Returns the boundary of each video, midway between the frames around it."""
    content: dict[str, list[dict[str, Any]]] = {}
    for boundary, frames in series.boundaries(images):
        video = video_name(frames[0])
        before, after = (frame.scene.objects[0].color for frame in frames)
        row = {"boundary_id": f"{video}_0", "timestamp": (boundary - 0.5) / FPS,
               "subject": f"the {subject(frames[0].scene)}", "status_before": f"is {before}",
               "status_after": f"is {after}", "label": "Change of Color"}  # fmt: skip
        content[video] = [row]
    return content
