"""Pairs of scenes as EqBen finds them in videos and makes them with a generator (Wang et al. 2023).

Frames of a video share everything but the light, which goes on a little, and what happens: in
Action Genome relations change, in YouCook2 the things at hand. Stable Diffusion draws two captions
that differ in an object, the scene around it or an attribute (section 4 there, appendix B).
"""

import random
from dataclasses import dataclass, replace

from data_builders.scenes.captions import INVERSE, clear_relation
from data_builders.scenes.grammar import Scene, SceneObject, half_height, sample_scene
from data_builders.scenes.minimal import free, put
from data_builders.scenes.statements import Noun, noun, related, there
from data_builders.scenes.twins import Twins, TwinSeries

_TURN = 3.0  # degrees the light goes on between the two frames
_FAR = 3.0  # world units along an axis that an object may come to stand from another
_SPOTS = 20  # that are tried before another scene is drawn


@dataclass(frozen=True)
class ActedTwins(TwinSeries):
    """Object 0 has gone to another side of object 1 (Action Genome).

    From left or right it went to front or behind, or from there to left or right: two of their
    relations change.
    """

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        a, b = scene.objects[:2]
        before = clear_relation(scene, 0, 1)
        if before is None or not free(scene, 0):
            return None
        for _ in range(_SPOTS):
            x, y = (b.center[k] + rng.uniform(-_FAR, _FAR) for k in (0, 1))
            twin = put(scene, replace(a, center=(x, y, a.center[2])))
            after = clear_relation(twin, 0, 1) if twin else None
            if twin is None or after is None or after in (before, INVERSE[before]):
                continue
            # Each caption must be false of the other image, other objects included.
            said = [
                related(scene, noun(a), after, noun(b)),
                related(twin, noun(a), before, noun(b)),
            ]
            if said == [False, False]:
                return scene, _later(twin)
        return None


@dataclass(frozen=True)
class StepTwins(TwinSeries):
    """Another object, of another shape and colour, has taken the place of object 0 (YouCook2)."""

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        thing = scene.objects[0]
        pairs = [(c, s) for c, s in self.spec.pairs() if c != thing.color and s != thing.shape]
        if not free(scene, 0) or not pairs:
            return None
        color, shape = rng.choice(pairs)
        twin = put(scene, _shaped(replace(thing, color=color), shape))
        if twin is None:
            return None
        before, after = (hands(s) for s in (scene, twin))
        if there(scene, *after) is not False or there(twin, *before) is not False:
            return None
        return scene, _later(twin)


@dataclass(frozen=True)
class EditedTwins(TwinSeries):
    """Object 0 has another shape or colour, or the floor is another one (Stable Diffusion)."""

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        kind = self.edit(index)
        if kind == "floor":
            floors = [floor for floor in self.spec.floors if floor != scene.floor]
            return scene, replace(scene, floor=rng.choice(floors))
        twin = self._recast(scene, kind, rng)
        if twin is None or (twin.objects[0].color, twin.objects[0].shape) in self.spec.forbidden:
            return None
        before, after = (noun(s.objects[0]) for s in (scene, twin))
        if there(scene, after) is not False or there(twin, before) is not False:
            return None
        return scene, twin

    def edit(self, index: int) -> str:
        """What item `index` changes: shape, floor and colour take turns; a sole floor stays."""
        kinds = ("shape", "floor", "color") if len(self.spec.floors) > 1 else ("shape", "color")
        return kinds[index % len(kinds)]

    def _recast(self, scene: Scene, kind: str, rng: random.Random) -> Scene | None:
        thing = scene.objects[0]
        if kind == "color":
            colors = [color for color in self.spec.colors if color != thing.color]
            changed = replace(thing, color=rng.choice(colors))
            return replace(scene, objects=(changed, *scene.objects[1:]))
        shapes = [shape for shape in self.spec.shapes if shape != thing.shape]
        return put(scene, _shaped(thing, rng.choice(shapes))) if free(scene, 0) else None


def hands(scene: Scene) -> tuple[Noun, Noun]:
    """Returns the two objects that a step of `StepTwins` is about, by colour and shape."""
    first, second = scene.objects[:2]
    return noun(first), noun(second)


def _shaped(thing: SceneObject, shape: str) -> SceneObject:
    """The object with another shape, on the floor."""
    changed = replace(thing, shape=shape, standing=False)
    x, y, _ = thing.center
    return replace(changed, center=(x, y, half_height(changed)))


def _later(scene: Scene) -> Scene:
    return replace(scene, light_azimuth=scene.light_azimuth + _TURN)
