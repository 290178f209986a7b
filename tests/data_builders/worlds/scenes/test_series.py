import random
from dataclasses import dataclass, replace

import pytest

from data_builders.worlds.scenes.sampling import NoRoomError, WorldSpec, sample_scene
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.series import Canvas, SceneSeries, Series, VariedScenes

CANVAS = Canvas(24, 1)
SPEC = WorldSpec(max_objects=3)


@dataclass(frozen=True)
class Sometimes(Series):
    """Every third scene is empty; a draw in two gives nothing."""

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        if rng.random() < 0.5:
            return None
        scene = sample_scene(self.spec, rng)
        return (replace(scene, objects=()) if index % 3 == 0 else scene,)


def test_an_empty_scene_shows_floor_and_background_only():
    (empty,) = Sometimes(SPEC, 4).render(0, 1, CANVAS)
    assert empty.scene.objects == ()
    assert not empty.visible.any()
    rows = empty.image.float().std(dim=1)  # of each row, over its pixels
    assert rows.max() < 30
    (filled,) = Sometimes(SPEC, 4).render(1, 1, CANVAS)
    assert filled.visible.any()


def test_odd_scenes_show_an_unseen_composition():
    unseen = frozenset({("red", "cube"), ("blue", "cone")})
    for rendered in VariedScenes(SPEC, 1, unseen).render(0, 8, CANVAS)[1::2]:
        assert unseen & {(o.color, o.shape) for o in rendered.scene.objects}
    assert len(VariedScenes(SPEC, 1, frozenset()).render(0, 8, CANVAS)) == 8


def test_objects_that_others_hide_are_sampled_again():
    spec = WorldSpec(min_objects=7, max_objects=7, min_visible=0.0, min_exposed=0.8)
    for rendered in SceneSeries(spec, 2).render(0, 12, CANVAS):
        assert (rendered.visible >= 0.8 * rendered.unoccluded).all()
    hidden = SceneSeries(replace(spec, min_exposed=0.0), 2).render(0, 12, CANVAS)
    assert any((one.visible < 0.8 * one.unoccluded).any() for one in hidden)


@dataclass(frozen=True)
class Crowded(Series):
    """The objects of the first few attempts find no place."""

    misfits: int = 2

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...]:
        for attempt in range(self.misfits):
            if rng.getstate() == random.Random(f"{self.seed}:{index}:{attempt}").getstate():
                raise NoRoomError("objects: expected fewer")
        return (sample_scene(self.spec, rng),)


def test_objects_that_find_no_place_are_sampled_again():
    assert len(Crowded(SPEC, 4).render(0, 2, CANVAS)) == 2
    # Where none fit, the world is at fault.
    with pytest.raises(NoRoomError, match="expected fewer"):
        Crowded(SPEC, 4, misfits=10).render(0, 2, CANVAS)
