import pytest

from data_builders.scenes.captions import INVERSE, clear_relation
from data_builders.scenes.edits import ActedTwins, EditedTwins, StepTwins, hands
from data_builders.scenes.grammar import WorldSpec, overlap
from data_builders.scenes.statements import there
from tests.data_builders.scenes.test_minimal import changes
from tests.data_builders.scenes.test_minimal import items as twins_of

SPEC = WorldSpec(min_objects=2, max_objects=4, stack_probability=0.5)
PLACED = {"shape", "center", "standing"}


def turned(scene, twin):
    return twin.light_azimuth - scene.light_azimuth


def test_an_action_changes_both_relations():
    seen = set()
    for _, (scene, twin) in twins_of(ActedTwins(SPEC, 1)):
        assert changes(scene, twin) == {0: {"center"}}
        before, after = (clear_relation(s, 0, 1) for s in (scene, twin))
        assert before in INVERSE
        assert after in set(INVERSE) - {before, INVERSE[before]}
        assert not any(overlap(twin.objects[0], other) for other in twin.objects[1:])
        assert turned(scene, twin) == pytest.approx(3.0)
        seen.add((before, after))
    assert len(seen) > 4


def test_a_step_replaces_one_of_two_things():
    for _, (scene, twin) in twins_of(StepTwins(SPEC, 2)):
        (fields,) = changes(scene, twin).values()
        assert {"shape", "color"} <= fields <= PLACED | {"color"}
        assert there(scene, *hands(twin)) is there(twin, *hands(scene)) is False
        assert not any(overlap(twin.objects[0], other) for other in twin.objects[1:])
        assert turned(scene, twin) == pytest.approx(3.0)


def test_edits_take_turns():
    series = EditedTwins(SPEC, 3)
    for index, (scene, twin) in twins_of(series):
        kind = ("shape", "floor", "color")[index % 3]
        assert series.edit(index) == kind
        assert (scene.floor != twin.floor) == (kind == "floor")
        changed = changes(scene, twin)
        if kind == "floor":
            assert not changed
        else:
            assert set(changed) == {0}
            assert kind in changed[0] <= (PLACED if kind == "shape" else {"color"})
        assert turned(scene, twin) == 0.0


def test_a_sole_floor_stays():
    spec = WorldSpec(min_objects=2, max_objects=2, floors=("sand",))
    kinds = set()
    for index, twins in twins_of(EditedTwins(spec, 4), 8):
        kinds.add(EditedTwins(spec, 4).edit(index))
        assert {scene.floor for scene in twins} == {"sand"}
    assert kinds == {"shape", "color"}


@pytest.mark.parametrize("cls", [StepTwins, EditedTwins])
def test_a_forbidden_composition_is_not_made(cls):
    forbidden = frozenset((color, "cube") for color in ("red", "blue", "green"))
    spec = WorldSpec(min_objects=2, max_objects=3, forbidden=forbidden)
    for _, twins in twins_of(cls(spec, 5)):
        assert forbidden.isdisjoint((o.color, o.shape) for s in twins for o in s.objects)


@pytest.mark.parametrize("cls", [ActedTwins, StepTwins, EditedTwins])
def test_the_same_item_again(cls):
    first, second = (list(twins_of(cls(SPEC, 6), 4)) for _ in range(2))
    assert first == second
