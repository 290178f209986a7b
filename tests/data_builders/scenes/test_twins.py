import random
from collections import Counter

import pytest

from data_builders.scenes.captions import INVERSE, clear_relation
from data_builders.scenes.compositions import RECTANGLES, swaps, unseen_pairs
from data_builders.scenes.drawing import Canvas
from data_builders.scenes.grammar import COLORS, SHAPES, WorldSpec, overlap
from data_builders.scenes.twins import AR4TTwins, ColaTwins

UNSEEN = unseen_pairs(RECTANGLES, tuple(COLORS), SHAPES)
SPEC = WorldSpec(min_objects=2, max_objects=4, stack_probability=0.5)


def items(series, count):
    for index in range(count):
        twins = None
        for number in range(400):
            twins = series.attempt(index, random.Random(f"{index}:{number}"))
            if twins:
                break
        assert twins is not None
        yield twins


def pair(thing):
    return thing.color, thing.shape


def test_cola_twins_are_swapped_and_unambiguous():
    series = ColaTwins(SPEC, 1, tuple(swaps(UNSEEN)))
    for scene, twin in items(series, 30):
        a, b = scene.objects[:2]
        c, d = twin.objects[:2]
        assert (c.color, c.shape, d.color, d.shape) == (b.color, a.shape, a.color, b.shape)
        assert a.color != b.color
        assert a.shape != b.shape
        four = {pair(o) for o in (a, b, c, d)}
        assert len(four) == 4
        assert four <= UNSEEN
        for one in (scene, twin):
            assert four.isdisjoint(pair(o) for o in one.objects[2:])
            assert not any(
                overlap(x, y) for i, x in enumerate(one.objects) for y in one.objects[:i]
            )
        words = [Counter(w for o in s.objects for w in pair(o)) for s in (scene, twin)]
        assert words[0] == words[1]
        assert [o.center for o in scene.objects] != [o.center for o in twin.objects]


def test_cola_swaps_come_equally_often():
    series = ColaTwins(SPEC, 1, tuple(swaps(UNSEEN)))
    count = 5 * len(series.swaps)
    assert set(Counter(series.swap(k) for k in range(count)).values()) == {5}


def test_relational_items_share_their_relation():
    series = ColaTwins(SPEC, 2, tuple(swaps(UNSEEN)), relational=1.0)
    for scene, twin in items(series, 10):
        assert clear_relation(scene, 0, 1) == clear_relation(twin, 0, 1) is not None
    half = ColaTwins(SPEC, 2, series.swaps, relational=0.5)
    assert 60 < sum(half.is_relational(k) for k in range(200)) < 140


def test_ar4t_negatives():
    spec = WorldSpec(min_objects=2, max_objects=2, forbidden=UNSEEN)
    series = AR4TTwins(spec, 4)
    kinds = set()
    for index, (scene, twin) in enumerate(items(series, 24)):
        (a, b), (c, d) = scene.objects, twin.objects
        if index % 2 == 0:
            relation = clear_relation(scene, 0, 1)
            assert relation is not None
            assert clear_relation(twin, 0, 1) == INVERSE[relation]
            assert (pair(a), pair(b)) == (pair(c), pair(d))
        else:
            kind = series.attribute(index)
            kinds.add(kind)
            assert getattr(c, kind) == getattr(b, kind) != getattr(a, kind) == getattr(d, kind)
        assert UNSEEN.isdisjoint(map(pair, (a, b, c, d)))
    assert kinds == {"color", "material", "size", "texture"}


def test_a_world_without_such_items_says_so():
    spec = WorldSpec(min_objects=2, max_objects=2, shapes=("cube",))
    with pytest.raises(ValueError, match="expected a world that holds items of AR4TTwins"):
        AR4TTwins(spec, 0).draw(0, 2, Canvas(16, 1))
    with pytest.raises(ValueError, match="expected even numbers"):
        AR4TTwins(spec, 0).draw(1, 2, Canvas(16, 1))
