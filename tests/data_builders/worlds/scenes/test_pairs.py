from collections import Counter

import pytest

from data_builders.phrases import INVERSE
from data_builders.worlds.scenes.captions import clear_relation, counting
from data_builders.worlds.scenes.compositions import RECTANGLES, swaps, unseen_compositions
from data_builders.worlds.scenes.pairs import (
    ActedPairs,
    ChangedPairs,
    ColaPairs,
    CountedPairs,
    EditedPairs,
    ExchangedPairs,
    MovedPairs,
    StepPairs,
    first_two,
)
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import COLORS, SHAPES
from data_builders.worlds.scenes.statements import exists
from data_builders.worlds.scenes.videos import FRAMES, Videos
from tests.data_builders.conftest import attempted

UNSEEN = unseen_compositions(RECTANGLES, tuple(COLORS), SHAPES)
SPEC = WorldSpec(min_objects=2, max_objects=4, stack_probability=0.5)
LAYOUT = {"shape", "center", "standing"}


def items(series, count=24):
    return ((index, attempted(series, index)) for index in range(count))


def changes(scene, twin):
    """Positions of the objects that differ, and in which fields."""
    return {
        k: {name for name in vars(a) if getattr(a, name) != getattr(b, name)}
        for k, (a, b) in enumerate(zip(scene.objects, twin.objects, strict=True))
        if a != b
    }


def composition(obj):
    return obj.color, obj.shape


def light_step(scene, twin):
    return twin.light_azimuth - scene.light_azimuth


def test_cola_pairs_are_swapped_unambiguous_and_equally_frequent():
    series = ColaPairs(SPEC, 1, tuple(swaps(UNSEEN)))
    for _, (scene, twin) in items(series, 30):
        a, b = scene.objects[:2]
        c, d = twin.objects[:2]
        assert (c.color, c.shape, d.color, d.shape) == (b.color, a.shape, a.color, b.shape)
        assert a.color != b.color
        assert a.shape != b.shape
        four = {composition(o) for o in (a, b, c, d)}
        assert len(four) == 4
        assert four <= UNSEEN
        for one in (scene, twin):
            assert four.isdisjoint(composition(o) for o in one.objects[2:])
            boxes = one.objects
            assert not any(x.overlaps(y) for i, x in enumerate(boxes) for y in boxes[:i])
        words = [Counter(w for o in s.objects for w in composition(o)) for s in (scene, twin)]
        assert words[0] == words[1]
        assert [o.center for o in scene.objects] != [o.center for o in twin.objects]
    count = 5 * len(series.swaps)
    assert set(Counter(series.swap(k) for k in range(count)).values()) == {5}


def test_exchanged_positions_reverse_a_relation():
    spec = WorldSpec(min_objects=2, max_objects=2, forbidden=UNSEEN)
    series = ExchangedPairs(spec, 4)
    kinds = set()
    for index, (scene, twin) in items(series):
        (a, b), (c, d) = scene.objects, twin.objects
        kind = series.attribute(index)
        assert (kind is None) == (index % 2 == 0)
        if kind is None:
            relation = clear_relation(scene, 0, 1)
            assert relation is not None
            assert clear_relation(twin, 0, 1) == INVERSE[relation]
            assert [*map(composition, (a, b))] == [*map(composition, (c, d))]
        else:
            kinds.add(kind)
            assert getattr(c, kind) == getattr(b, kind) != getattr(a, kind) == getattr(d, kind)
        assert UNSEEN.isdisjoint(map(composition, (a, b, c, d)))
    assert kinds == {"color", "material", "size", "texture"}


def test_only_one_object_moves_to_the_other_side():
    for _, (scene, twin) in items(MovedPairs(SPEC, 1)):
        assert changes(scene, twin) == {0: {"center"}}
        relation = clear_relation(scene, 0, 1)
        assert relation is not None
        assert clear_relation(twin, 0, 1) == INVERSE[relation]
        assert not any(twin.objects[0].overlaps(other) for other in twin.objects[1:])


def test_only_the_number_differs():
    orders = set()
    series = CountedPairs(SPEC, 2)
    for index, (scene, twin) in items(series):
        fewer, more = sorted((scene, twin), key=lambda s: len(s.objects))
        assert fewer.objects == more.objects[:-1]
        orders.add(scene is fewer)
        shape = more.objects[-1].shape if index % 2 else None
        for shown in (scene, twin):
            number = sum(shape in (None, obj.shape) for obj in shown.objects)
            assert series.caption(index, shown, (scene, twin)) == counting(number, shape)
    assert orders == {True, False}


def test_only_one_attribute_differs():
    kinds = set()
    series = ChangedPairs(SPEC, 3)
    for index, (scene, twin) in items(series):
        (fields,) = changes(scene, twin).values()
        kind = series.attribute(index)
        kinds.add(kind)
        assert fields == ({kind, "radius", "center"} if kind == "size" else {kind})
        for one, other in ((scene, twin), (twin, scene)):
            a = one.objects[0]
            alike = (a.shape, getattr(a, kind))
            assert alike not in [(o.shape, getattr(o, kind)) for o in other.objects]
    assert kinds == {"color", "material", "size", "texture"}


def test_an_action_changes_both_relations():
    seen = set()
    for _, (scene, twin) in items(ActedPairs(SPEC, 1)):
        assert changes(scene, twin) == {0: {"center"}}
        before, after = (clear_relation(s, 0, 1) for s in (scene, twin))
        assert before in INVERSE
        assert after in set(INVERSE) - {before, INVERSE[before]}
        assert not any(twin.objects[0].overlaps(other) for other in twin.objects[1:])
        assert light_step(scene, twin) == pytest.approx(3.0)
        seen.add((before, after))
    assert len(seen) > 4


def test_a_step_replaces_one_of_two_objects():
    for _, (scene, twin) in items(StepPairs(SPEC, 2)):
        (fields,) = changes(scene, twin).values()
        assert {"shape", "color"} <= fields <= LAYOUT | {"color"}
        assert exists(scene, *first_two(twin)) is exists(twin, *first_two(scene)) is False
        assert not any(twin.objects[0].overlaps(other) for other in twin.objects[1:])
        assert light_step(scene, twin) == pytest.approx(3.0)


def test_edits_take_turns_and_a_sole_floor_stays():
    series = EditedPairs(SPEC, 3)
    for index, (scene, twin) in items(series):
        kind = ("shape", "floor", "color")[index % 3]
        assert series.edit(index) == kind
        assert (scene.floor != twin.floor) == (kind == "floor")
        changed = changes(scene, twin)
        if kind == "floor":
            assert not changed
        else:
            assert set(changed) == {0}
            assert kind in changed[0] <= (LAYOUT if kind == "shape" else {"color"})
        assert light_step(scene, twin) == 0.0
    spec = WorldSpec(min_objects=2, max_objects=2, floors=("sand",))
    series, kinds = EditedPairs(spec, 4), set()
    for index, pair in items(series, 8):
        kinds.add(series.edit(index))
        assert {scene.floor for scene in pair} == {"sand"}
    assert kinds == {"shape", "color"}


def test_one_object_changes_its_colour_once_and_anywhere():
    series = Videos(SPEC, 1)
    for index, frames in items(series, 20):
        assert len(frames) == FRAMES
        colors = [scene.objects[0].color for scene in frames]
        changes = [k for k in range(1, FRAMES) if colors[k] != colors[k - 1]]
        assert changes == [series.boundary(index)]
        assert len({scene.objects[1:] for scene in frames}) == 1
        assert len({scene.light_azimuth for scene in frames}) == FRAMES
        assert frames[0].objects[0].shape == frames[-1].objects[0].shape
    series = Videos(SPEC, 2)
    assert set(Counter(series.boundary(k) for k in range(200))) == set(range(1, FRAMES))


@pytest.mark.parametrize("cls", [ChangedPairs, StepPairs, EditedPairs, Videos])
def test_a_forbidden_composition_does_not_occur(cls):
    forbidden = frozenset((color, "cube") for color in ("red", "blue", "green"))
    fixed = {"materials": ("metal",), "sizes": ("large",), "textures": ("plain",)}
    for spec in (
        WorldSpec(min_objects=2, max_objects=3, forbidden=forbidden),
        WorldSpec(min_objects=2, max_objects=2, forbidden=forbidden, **fixed),
    ):
        for _, pair in items(cls(spec, 5)):
            assert forbidden.isdisjoint(composition(o) for s in pair for o in s.objects)
