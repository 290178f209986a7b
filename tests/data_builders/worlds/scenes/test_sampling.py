"""Sampling, twins and relations of the embedded world."""

import itertools
import random

import pytest

from data_builders.worlds.scenes.sampling import WorldSpec, relations, sample_scene, sample_twin
from data_builders.worlds.scenes.scene import SIZES, Scene, SceneObject, camera
from data_builders.worlds.scenes.series import SceneSeries


def _scenes(spec: WorldSpec, count: int = 60) -> list[Scene]:
    return [sample_scene(spec, random.Random(k)) for k in range(count)]


def _at(right: float, behind: float, shape: str = "sphere", size: str = "small",
        on: int | None = None, z: float | None = None) -> SceneObject:  # fmt: skip
    axes = camera().axes
    x, y = (right * axes["right"][k] + behind * axes["behind"][k] for k in (0, 1))
    height = SIZES[size] if z is None else z
    return SceneObject(shape, "red", "rubber", "plain", size, (x, y, height), SIZES[size], on=on)


def test_objects_stay_apart_in_view_in_number_and_distinct() -> None:
    for scene in _scenes(WorldSpec(stack_probability=0.5)):
        view = scene.view
        assert all(view.shows(obj) for obj in scene.objects)
        for a, obj in enumerate(scene.objects):
            assert not any(obj.overlaps(other) for other in scene.objects[:a])
    spec = WorldSpec(min_objects=2, max_objects=4, colors=("red", "blue"), shapes=("cube", "cone"))
    for scene in _scenes(spec, 40):
        pairs = [(o.color, o.shape) for o in scene.objects]
        assert 2 <= len(pairs) <= 4
        assert len(set(pairs)) == len(pairs)


CLEVR = WorldSpec(shapes=("cube", "sphere", "cylinder")).as_clevr()


def test_scenes_as_clevrs_keep_a_margin_and_have_three_to_ten_objects_equally_often() -> None:
    repeated = 0
    for scene in _scenes(CLEVR, 24):
        axes = scene.view.axes
        for a, b in itertools.combinations(scene.objects, 2):
            offset = [p - q for p, q in zip(a.center, b.center, strict=True)]
            for name in ("right", "behind"):
                along = sum(p * q for p, q in zip(offset, axes[name], strict=True))
                assert abs(along) >= 0.4
            assert not a.overlaps(b, 0.25)
        assert all(scene.view.shows(obj) for obj in scene.objects)
        table = relations(scene)
        for i, j in itertools.permutations(range(len(scene.objects)), 2):
            assert (j in table["left"][i]) != (j in table["right"][i])
            assert (j in table["front"][i]) != (j in table["behind"][i])
        repeated += len({(o.color, o.shape) for o in scene.objects}) < len(scene.objects)
    assert repeated > 4
    series = SceneSeries(CLEVR, 0)
    counts = [len(series.attempt(k, random.Random(k))[0].objects) for k in range(160)]
    again = [len(series.attempt(k, random.Random(-k - 1))[0].objects) for k in range(20)]
    assert again == counts[:20]  # another attempt does not make scenes smaller
    assert set(counts) == set(range(3, 11))
    assert all(8 < counts.count(n) < 40 for n in range(3, 11))


def test_stacked_objects_touch_their_support() -> None:
    stacked = 0
    for scene in _scenes(WorldSpec(min_objects=3, stack_probability=1.0)):
        for obj in scene.objects:
            if obj.on is not None:
                base = scene.objects[obj.on]
                stacked += 1
                assert base.shape in ("cube", "cylinder")
                assert base.size == "large"
                gap = obj.center[2] - obj.half_height - base.center[2] - base.half_height
                assert gap == pytest.approx(0.0, abs=1e-9)
    assert stacked > 20


def test_relations_of_a_hand_made_scene_follow_the_image() -> None:
    base = _at(0.0, 0.0, "cube", "large", z=0.53)
    scene = Scene((base, _at(1.5, 0.1), _at(0.0, 1.8), _at(0.0, 0.0, on=0, z=1.48)))
    table = relations(scene)
    assert table["right"] == [[1], [], [1], [1]]
    assert table["left"] == [[], [0, 2, 3], [], []]
    assert table["behind"] == [[2], [2], [], [2]]
    assert table["front"] == [[], [], [0, 1, 3], []]
    assert table["above"] == table["on"] == [[3], [], [], []]
    assert table["below"] == table["under"] == [[], [], [], [0]]
    view, axes = camera(), camera().axes
    assert view.project(axes["right"])[0] > 0.0 > view.project(axes["left"])[0]
    assert view.project(axes["behind"])[1] > view.project(axes["front"])[1]
    assert view.project(axes["behind"])[2] > view.project(axes["front"])[2]


@pytest.mark.parametrize("attribute", ["color", "size", "texture", "material"])
def test_twin_exchanges_one_attribute(attribute: str) -> None:
    tried = 0
    for k, scene in enumerate(_scenes(WorldSpec(min_objects=2, stack_probability=0.3), 20)):
        a, b = scene.objects[:2]
        if getattr(a, attribute) == getattr(b, attribute):
            continue
        tried += 1
        twin = sample_twin(scene, attribute, random.Random(k))
        assert getattr(twin.objects[0], attribute) == getattr(b, attribute)
        assert getattr(twin.objects[1], attribute) == getattr(a, attribute)
        for name in {"color", "shape", "size", "texture", "material"} - {attribute}:
            now, before = ([getattr(o, name) for o in s.objects] for s in (twin, scene))
            assert now == before
        assert twin.objects[2:] != scene.objects[2:] or len(scene.objects) == 2
        assert twin.objects[0].center != a.center
    assert tried > 3


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"max_objects: expected .* got 4, 2; choose"):
        WorldSpec(min_objects=4, max_objects=2)
    with pytest.raises(ValueError, match="pairs"):
        WorldSpec(colors=("red",), shapes=("cube",), max_objects=2)
