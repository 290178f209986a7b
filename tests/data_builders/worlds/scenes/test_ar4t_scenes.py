import itertools
import math
import re
from collections import Counter
from dataclasses import replace

import pytest

from data_builders.phrases import INVERSE
from data_builders.worlds.scenes.ar4t_paper import PaperPairs, PaperSingles
from data_builders.worlds.scenes.ar4t_scenes import AR4TPairs, AR4TSingles
from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.compositions import RECTANGLES, unseen_compositions
from data_builders.worlds.scenes.render import render
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import COLORS, SHAPES
from data_builders.worlds.scenes.statements import Noun, relation_holds
from tests.data_builders.conftest import attempted

UNSEEN = unseen_compositions(RECTANGLES, tuple(COLORS), SHAPES)
ANY = WorldSpec(min_objects=2, max_objects=2)
SPEC = replace(ANY, forbidden=UNSEEN)
ONE = WorldSpec(max_objects=1, forbidden=UNSEEN)
PLAIN = replace(ANY, textures=("plain",), sizes=("large",))
DIRECTIONS = {"left", "right", "front", "behind", "above", "below", "on", "under"}


def related(series, *names, count=64):
    """Scenes of items that reverse one of the relations, with the object over and under."""
    for index in range(0, count, 2):
        if series.relation(index) in names:
            for scene in attempted(series, index):
                over = clear_relation(scene, 0, 1) in ("above", "on")
                yield scene, *(scene.objects if over else scene.objects[::-1])


both_worlds = pytest.mark.parametrize("spec", [SPEC, PLAIN])


@both_worlds
def test_each_direction_comes_equally_often_and_its_negative_is_the_reverse(spec):
    series, seen = AR4TPairs(spec, 4), Counter()
    for index in range(0, 64, 2):
        scene, twin = attempted(series, index)
        relation = clear_relation(scene, 0, 1)
        assert relation == series.relation(index)
        assert clear_relation(twin, 0, 1) == INVERSE[relation]
        seen[relation] += 1
        for old, new in zip(scene.objects, twin.objects, strict=True):
            for name in ("shape", "color", "material", "texture", "size"):
                assert getattr(old, name) == getattr(new, name)
        # The negative's caption is false of the scene, and the scene's of the negative.
        first, second = (Noun(obj.shape) for obj in scene.objects)
        assert relation_holds(scene, first, INVERSE[relation], second) is False
        assert relation_holds(twin, first, relation, second) is False
    assert seen == dict.fromkeys(DIRECTIONS, 4)


@both_worlds
def test_an_object_above_hangs_in_the_air_and_projects_higher(spec):
    found = list(related(AR4TPairs(spec, 4), "above", "below"))
    assert len(found) == 16
    for scene, upper, lower in found:
        assert lower.center[2] == pytest.approx(lower.half_height)
        gap = upper.center[2] - upper.half_height - lower.center[2] - lower.half_height
        assert gap > 0.3
        aside = math.dist(upper.center[:2], lower.center[:2])
        assert aside < 0.1
        view = scene.view
        assert view.project(upper.center)[1] > view.project(lower.center)[1] + 0.1
    scenes = [scene for scene, _, _ in found]
    for rendered, (scene, upper, _) in zip(render(scenes, 128), found, strict=True):
        k = scene.objects.index(upper)
        boxes = rendered.boxes.tolist()
        (_, y, _, h), (_, base, _, _) = boxes[k], boxes[1 - k]
        assert y + h <= base + 1  # no pixel row shows both


@both_worlds
def test_an_object_on_another_touches_it(spec):
    found = list(related(AR4TPairs(spec, 4), "on", "under"))
    assert len(found) == 16
    for scene, top, base in found:
        assert top.on == scene.objects.index(base)
        assert base.on is None
        assert base.center[2] == pytest.approx(base.half_height)
        gap = top.center[2] - top.half_height - base.center[2] - base.half_height
        assert gap == pytest.approx(0.0, abs=1e-9)
        assert math.dist(top.center[:2], base.center[:2]) < 0.1
        assert {top.shape, base.shape} <= {"cube", "cylinder", "torus"}
        assert not top.standing
        assert not base.standing
        assert top.size == base.size


def test_exchanged_attributes_and_their_values_come_equally_often():
    series, values = AR4TPairs(ANY, 4), {}
    for index in range(1, 8 * 4 * 2, 2):
        scene, twin = attempted(series, index)
        (a, b), (c, d) = scene.objects, twin.objects
        kind = series.attribute(index)
        assert getattr(c, kind) == getattr(b, kind) != getattr(a, kind) == getattr(d, kind)
        assert (a.shape, b.shape) == (c.shape, d.shape)
        assert a.shape != b.shape
        values.setdefault(kind, []).append((getattr(a, kind), getattr(b, kind)))
    assert set(values) == {"color", "material", "size", "texture"}
    assert {len(pairs) for pairs in values.values()} == {8}
    firsts, seconds = (Counter(pair[k] for pair in values["color"]) for k in (0, 1))
    assert firsts == seconds == dict.fromkeys(COLORS, 1)
    assert Counter(values["size"]) == {("small", "large"): 4, ("large", "small"): 4}


@pytest.mark.parametrize("kind", [AR4TPairs, PaperPairs])
def test_training_never_shows_an_unseen_composition(kind):
    series = kind(SPEC, 4)
    for index in range(64):
        for scene in attempted(series, index):
            assert UNSEEN.isdisjoint((o.color, o.shape) for o in scene.objects)


def test_a_world_of_few_shapes_has_no_stacks_and_says_nothing_of_contact():
    few = AR4TPairs(replace(ANY, shapes=("sphere", "cube")), 0)
    assert set(few.relations) == DIRECTIONS - {"on", "under"}
    three = AR4TPairs(replace(ANY, shapes=("sphere", "cube", "torus")), 0)
    assert set(three.relations) == DIRECTIONS
    series = PaperPairs(replace(ANY, shapes=("sphere", "cube")), 0)
    pairs = [series.pair_of_words(index) for index in range(0, 200, 2)]
    assert {word for pair in pairs for word in pair} == set(TABLE_7) - {"on", "on top of"}


def test_colours_that_no_two_shapes_share_are_not_exchanged():
    # Only green may be a cube and a cone; so no pair of colours can change places.
    forbidden = frozenset({("red", "cube"), ("blue", "cone")})
    shapes, colors = ("cube", "cone"), ("red", "blue", "green")
    one = {"materials": ("metal",), "sizes": ("large",), "textures": ("plain", "striped")}
    spec = replace(SPEC, shapes=shapes, colors=colors, forbidden=forbidden, **one)
    assert {AR4TPairs(spec, 0).attribute(k) for k in range(1, 12, 2)} == {"texture"}


def test_scenes_of_one_object_take_turns():
    series = AR4TSingles(ONE, 3, 10)
    shapes, stated = Counter(), Counter()
    for index in range(10 + 2 * 14):
        (scene,) = attempted(series, index)
        (obj,) = scene.objects
        assert (obj.color, obj.shape) not in UNSEEN
        kind = series.attribute(index)
        assert (kind is None) == (index < 10)
        if kind is None:
            shapes[obj.shape] += 1
        else:
            stated[getattr(obj, kind)] += 1
    assert shapes == dict.fromkeys(SHAPES, 2)
    words = (*COLORS, "rubber", "metal", "small", "large", "striped", "checkered")
    assert stated == dict.fromkeys(words, 2)


# Table 7 of PUG's appendix B.5.
TABLE_7 = {
    "above": {"below", "beneath", "under"},
    "on top of": {"below", "beneath", "under"},
    "on": {"below", "beneath", "under"},
    "below": {"above", "on top of", "on"},
    "beneath": {"above", "on top of", "on"},
    "under": {"above", "on top of", "on"},
    "behind": {"in front of"},
    "in front of": {"behind"},
    "to the left of": {"to the right of"},
    "to the right of": {"to the left of"},
}
TAIL = r"(at|in|inside) (grass|sand|tiles|concrete floor|wood floor)"


def holds(scene, caption):
    """Whether "cube beneath torus in sand" is true of the positions of two shapes."""
    words = "|".join(sorted(TABLE_7, key=len, reverse=True))
    first, word, second, *_ = re.fullmatch(rf"(\w+) ({words}) (\w+) {TAIL}", caption).groups()
    a, b = (next(o for o in scene.objects if o.shape == name) for name in (first, second))
    view = scene.view
    across, up = (view.project(a.center)[k] - view.project(b.center)[k] for k in (0, 1))
    if word in ("to the left of", "to the right of"):
        return (across < 0) == (word == "to the left of")
    if word in ("behind", "in front of"):
        return (up > 0) == (word == "behind")
    over = word in ("above", "on", "on top of")
    high, low = (a, b) if over else (b, a)
    gap = high.center[2] - high.half_height - low.center[2] - low.half_height
    touches = gap == pytest.approx(0.0, abs=1e-9)
    return touches or (gap > 0 and word not in ("on", "on top of"))


def test_words_of_the_paper_have_the_negatives_of_table_7():
    series, firsts, negatives = PaperPairs(SPEC, 4), Counter(), {}
    for index in range(0, 2 * 10 * 12, 2):
        scene, twin = attempted(series, index)
        captions = series.captions(index, (scene, twin))
        own, other = (text.relation for text in captions)
        firsts[own] += 1
        negatives.setdefault(own, set()).add(other)
        for shown, false, text in ((scene, twin, captions[0]), (twin, scene, captions[1])):
            assert holds(shown, text.caption)
            assert holds(shown, text.alternative)
            assert not holds(false, text.caption)
        tails = {re.search(TAIL, x).group() for c in captions for x in (c.caption, c.alternative)}
        assert len(tails) == 1
    assert firsts == dict.fromkeys(TABLE_7, 12)
    assert negatives == TABLE_7


def test_attributes_of_two_kinds_are_exchanged():
    series = PaperPairs(ANY, 4)
    stated = [series.stated(index) for index in range(1, 2 * 14 * 13, 2)]
    assert len(set(stated)) == 14 * 13  # all ordered pairs of 14 values
    firsts, seconds = (Counter(pair[k] for pair in stated[:28]) for k in (0, 1))
    assert set(firsts.values()) == set(seconds.values()) == {2}
    kinds = set()
    for index in range(1, 80, 2):
        scene, twin = attempted(series, index)
        captions = series.captions(index, (scene, twin))
        (kind, value), (other_kind, other) = series.stated(index)
        kinds.add((kind, other_kind))
        a, b = (obj.shape for obj in scene.objects)
        assert captions[0].caption.startswith(f"{value} {a} and {other} {b} ")
        assert captions[1].caption.startswith(f"{other} {a} and {value} {b} ")
        assert captions[0].alternative.startswith(f"{other} {b} and {value} {a} ")
        # True of the own scene, and of the other scene neither half is.
        for has, lacks in (scene.objects, twin.objects[::-1]):
            assert (getattr(has, kind), getattr(lacks, other_kind)) == (value, other)
            assert getattr(has, other_kind) != other
            assert getattr(lacks, kind) != value
    assert len(kinds) > 8


def test_unary_relations_of_the_paper_take_turns():
    series = PaperSingles(ONE, 3, 30)
    relations = Counter()
    for index in range(30):
        (scene,) = attempted(series, index)
        captions = series.captions(index, scene)
        assert re.fullmatch(rf"{scene.objects[0].shape} {TAIL}", captions.caption)
        assert not captions.alternative
        relations[captions.relation, scene.objects[0].shape] += 1
    assert relations == dict.fromkeys(itertools.product(("at", "in", "inside"), SHAPES), 2)
