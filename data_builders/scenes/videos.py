"""Short videos in which one thing changes: the boundaries that video grounding looks for (GEB+)."""

import random
from dataclasses import dataclass, replace
from typing import ClassVar

from data_builders.scenes.grammar import Scene, sample_scene
from data_builders.scenes.series import ItemSeries
from data_builders.scenes.statements import Noun, counted, found, noun

FRAMES = 8
FPS = 2.0
_TURN = 3.0  # degrees the light goes on from frame to frame: no two frames are the same


@dataclass(frozen=True)
class Videos(ItemSeries):
    """Item i is a video of `FRAMES` frames; at one of them object 0 takes another colour.

    No other object has its shape, so "the cube" says which one is meant.
    """

    scenes: ClassVar[int] = FRAMES

    def boundary(self, index: int) -> int:
        """The first frame of video `index` with the new colour, counted from 0."""
        return random.Random(f"{self.seed}:boundary:{index}").randrange(1, FRAMES)

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        thing = scene.objects[0]
        others = [color for color in self.spec.colors if color != thing.color]
        if counted(scene, thing.shape) > 1 or not others:
            return None
        changed = replace(thing, color=rng.choice(others))
        if (changed.color, changed.shape) in self.spec.forbidden:
            return None
        return tuple(
            replace(
                scene,
                objects=(thing if k < self.boundary(index) else changed, *scene.objects[1:]),
                light_azimuth=scene.light_azimuth + _TURN * k,
            )
            for k in range(FRAMES)
        )


def subject(scene: Scene) -> Noun:
    """Returns what changes, by its shape alone."""
    what = noun(scene.objects[0], [])
    assert found(scene, what) == [0], "Videos draws one object of the shape only"
    return what
