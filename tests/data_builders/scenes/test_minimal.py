import random

import pytest

from data_builders.scenes.captions import INVERSE, clear_relation
from data_builders.scenes.grammar import WorldSpec, overlap
from data_builders.scenes.minimal import ChangedTwins, CountedTwins, MovedTwins

SPEC = WorldSpec(min_objects=2, max_objects=4, stack_probability=0.5)
KINDS = ("shape", "color", "material", "texture", "size")


def items(series, count=24):
    for index in range(count):
        drawn = (series.attempt(index, random.Random(f"{index}:{n}")) for n in range(400))
        yield index, next(twins for twins in drawn if twins)


def changes(scene, twin):
    """Positions of the objects that differ, and in which fields."""
    return {
        k: {name for name in vars(a) if getattr(a, name) != getattr(b, name)}
        for k, (a, b) in enumerate(zip(scene.objects, twin.objects, strict=True))
        if a != b
    }


def test_only_one_object_moves_to_the_other_side():
    for _, (scene, twin) in items(MovedTwins(SPEC, 1)):
        assert changes(scene, twin) == {0: {"center"}}
        relation = clear_relation(scene, 0, 1)
        assert relation is not None
        assert clear_relation(twin, 0, 1) == INVERSE[relation]
        assert not any(overlap(twin.objects[0], other) for other in twin.objects[1:])


def test_only_the_number_differs():
    orders = set()
    for index, (scene, twin) in items(CountedTwins(SPEC, 2)):
        fewer, more = sorted((scene, twin), key=lambda s: len(s.objects))
        assert fewer.objects == more.objects[:-1]
        orders.add(scene is fewer)
        shape = CountedTwins.shape(index, scene, twin)
        assert shape == (more.objects[-1].shape if index % 2 else None)
    assert orders == {True, False}


def test_only_one_attribute_differs():
    kinds = set()
    series = ChangedTwins(SPEC, 3)
    for index, (scene, twin) in items(series):
        (fields,) = changes(scene, twin).values()
        kind = series.attribute(index)
        kinds.add(kind)
        assert fields == ({kind, "radius", "center"} if kind == "size" else {kind})
        for one, other in ((scene, twin), (twin, scene)):
            a = one.objects[0]
            assert not any(
                (o.shape, getattr(o, kind)) == (a.shape, getattr(a, kind)) for o in other.objects
            )
    assert kinds == {"color", "material", "size", "texture"}


def test_a_forbidden_composition_is_not_made():
    forbidden = frozenset({("red", "cube"), ("blue", "cube")})
    spec = WorldSpec(min_objects=2, max_objects=2, forbidden=forbidden, materials=("metal",),
                     sizes=("large",), textures=("plain",))  # fmt: skip
    for _, twins in items(ChangedTwins(spec, 4)):
        assert forbidden.isdisjoint((o.color, o.shape) for s in twins for o in s.objects)


@pytest.mark.parametrize("cls", [MovedTwins, CountedTwins, ChangedTwins])
def test_the_same_item_again(cls):
    first, second = (list(items(cls(SPEC, 5), 4)) for _ in range(2))
    assert first == second
