"""Sets of scenes: the same two objects in each relation on the floor.

In: a spec and a seed. Out: a series of sets.
"""

import random
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.sampling import CLEARANCE, on_floor, sample_scene
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, Scene, SceneObject, Vector
from data_builders.worlds.scenes.series import Series

_MIDDLE = 0.3  # the middle between the objects is so near to that of the view, in world units
_APART = (1.7, 2.1)  # distance of the objects


class PlacedSets(Series):
    """Object 0 left, right, in front and behind of object 1, and nothing else (What'sUp, part B).

    `spec` has scenes of two objects, none of them on the other.
    """

    scenes: ClassVar[int] = 4

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        first, second = scene.objects
        side, back = rng.uniform(-_MIDDLE, _MIDDLE), rng.uniform(-_MIDDLE, _MIDDLE)
        placed = []
        for name in GROUND_RELATIONS:
            axis = scene.view.axes[name]
            apart = rng.uniform(*_APART)
            # On either side of the middle: beside each other they fill the width of the view.
            objects = (
                _moved(on_floor(first, side, back), axis, apart / 2),
                _moved(on_floor(second, side, back), axis, -apart / 2),
            )
            shown = replace(scene, objects=objects)
            in_view = all(map(scene.view.shows, objects))
            if not in_view or objects[0].overlaps(objects[1], CLEARANCE):
                return None
            if clear_relation(shown, 0, 1) != name:
                return None
            placed.append(shown)
        return tuple(placed)


def _moved(obj: SceneObject, axis: Vector, distance: float) -> SceneObject:
    x, y, _ = obj.center
    return obj.at(x + distance * axis[0], y + distance * axis[1])
