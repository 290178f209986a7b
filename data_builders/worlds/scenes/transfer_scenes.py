"""Series of scenes that training lacks: other cameras and lights, hidden objects, equal ones.

In: a spec and a seed. Out: scenes.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal

from typing_extensions import override

from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.pairs import ColaPairs
from data_builders.worlds.scenes.render import Rendered
from data_builders.worlds.scenes.sampling import crowded, sample_scene
from data_builders.worlds.scenes.scene import CAMERA_AZIMUTH, Scene, camera_offset
from data_builders.worlds.scenes.series import SceneSeries, Series

_HIDDEN = 0.2  # least fraction of an object that another one hides
_LIGHTS = (110.0, 250.0)  # degrees from the camera; training has up to 75 to either side


class RelatedPairs(ColaPairs):
    """Cola's items, of which half have their two objects in one clear relation in both images."""

    def is_related(self, index: int) -> bool:
        """Tells whether the captions of item `index` state a relation."""
        return random.Random(f"{self.seed}:relational:{index}").random() < 0.5

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, Scene] | None:
        pair = super().attempt(index, rng)
        if pair is None or not self.is_related(index):
            return pair
        relation = clear_relation(pair[0], 0, 1)
        differs = relation is None or relation != clear_relation(pair[1], 0, 1)
        return None if differs else pair


class HiddenScenes(SceneSeries):
    """Scenes in which an object hides a part of another one."""

    @override
    def _accepts(self, rendered: Rendered) -> bool:
        hidden = rendered.visible < (1.0 - _HIDDEN) * rendered.unoccluded
        return super()._accepts(rendered) and bool(hidden.any())


@dataclass(frozen=True)
class EqualScenes(Series):
    """Scenes of objects of one shape, or of one colour."""

    kind: Literal["color", "shape"]

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        values = {getattr(obj, self.kind) for obj in scene.objects}
        return (scene,) if len(values) == 1 else None


class LitScenes(Series):
    """Scenes with a light from behind."""

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        return (replace(scene, light_azimuth=CAMERA_AZIMUTH + rng.uniform(*_LIGHTS)),)


class TurnedScenes(Series):
    """Scenes from other cameras: turned by up to 60 degrees, higher, lower, farther away."""

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        turn = rng.choice((-1.0, 1.0)) * rng.uniform(20.0, 60.0)
        pitch = rng.choice((15.0, 45.0))
        distance = rng.uniform(16.0, 24.0)
        scene = sample_scene(self.spec, rng)
        scene = replace(scene, jitter=camera_offset(turn, pitch, distance))
        # The objects were laid out for the usual camera.
        if not all(map(scene.view.shows, scene.objects)):
            return None
        for k, obj in enumerate(scene.objects):
            if any(crowded(obj, other, scene.view) for other in scene.objects[:k]):
                return None
        return (scene,)


@dataclass(frozen=True)
class CountedScenes(Series):
    """Scenes of one to `most` objects, each with a near number that is false.

    Every pair of numbers k, k + 1 occurs equally often, and each of the two is true in half of its
    scenes, so that preferring a number gains nothing. With `of_shape` so many objects have one
    shape, and two more another.
    """

    most: int
    of_shape: bool = False

    def numbers(self, index: int) -> tuple[int, int]:
        """Returns the number of scene `index`, and a false one."""
        pair, true = divmod(index, 2)
        low = 1 + pair % (self.most - 1)
        numbers = low, low + 1
        return numbers[true], numbers[1 - true]

    def shapes(self, index: int) -> tuple[str, str]:
        """Returns the shape that is counted in scene `index`, and the other one."""
        first, second = random.Random(f"{self.seed}:{index}:shapes").sample(self.spec.shapes, 2)
        return first, second

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        count, _ = self.numbers(index)
        total = count + 2 if self.of_shape else count
        spec = replace(self.spec, min_objects=total, max_objects=total)
        if not self.of_shape:
            return (sample_scene(spec, rng),)
        counted, other = self.shapes(index)
        scene = sample_scene(replace(spec, shapes=(counted, other)), rng)
        is_counted = [obj.shape == counted for obj in scene.objects]
        return (scene,) if sum(is_counted) == count else None
