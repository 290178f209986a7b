"""Videos in which one object changes its colour (GEB+).

In: a spec and a seed. Out: a series of videos.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.pairs import LIGHT_STEP
from data_builders.worlds.scenes.sampling import sample_scene
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.series import Series
from data_builders.worlds.scenes.statements import object_count

FRAMES = 8
FPS = 2.0


class Videos(Series):
    """Item i is a video of `FRAMES` frames; at one of them object 0 changes colour.

    No other object has its shape, so "the cube" refers to it alone. The light turns.
    """

    scenes: ClassVar[int] = FRAMES

    def boundary(self, index: int) -> int:
        """Returns the first frame of video `index` with the new colour, counted from 0."""
        return random.Random(f"{self.seed}:boundary:{index}").randrange(1, FRAMES)

    def boundaries(
        self, images: Sequence[SceneImage]
    ) -> Iterator[tuple[int, Sequence[SceneImage]]]:
        """Yields the boundary of each video and the frames before and after it."""
        for k in range(0, len(images), FRAMES):
            boundary = self.boundary(k // FRAMES)
            yield boundary, images[k + boundary - 1 : k + boundary + 1]

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        obj = scene.objects[0]
        colors = [color for color in self.spec.colors if color != obj.color]
        if object_count(scene, obj.shape) > 1 or not colors:
            return None
        changed = replace(obj, color=rng.choice(colors))
        if (changed.color, changed.shape) in self.spec.forbidden:
            return None
        boundary = self.boundary(index)
        scenes = []
        for k in range(FRAMES):
            shown = obj if k < boundary else changed
            azimuth = scene.light_azimuth + LIGHT_STEP * k
            objects = (shown, *scene.objects[1:])
            scenes.append(replace(scene, objects=objects, light_azimuth=azimuth))
        return tuple(scenes)


def frames(
    videos: int, folder: str, count: int = FRAMES, extension: str = "png"
) -> tuple[str, ...]:
    """Returns the files of the frames of so many videos, relative to the images folder.

    Example:
        >>> frames(1, "geb", 2)
        ('geb/video_0000/video_0000_00001.png', 'geb/video_0000/video_0000_00002.png')
    """
    return tuple(
        f"{folder}/video_{video:04d}/video_{video:04d}_{frame:05d}.{extension}"
        for video in range(videos)
        for frame in range(1, count + 1)
    )
