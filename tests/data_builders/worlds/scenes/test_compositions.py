import itertools

import pytest

from data_builders.worlds.scenes.compositions import RECTANGLES, Swap, swaps, unseen_compositions
from data_builders.worlds.scenes.scene import COLORS, SHAPES
from tests.refusals import refused


def test_default_split():
    unseen = unseen_compositions(RECTANGLES, tuple(COLORS), SHAPES)
    assert len(unseen) == 8
    # Every colour and every shape is seen in training, in other company.
    seen = set(itertools.product(COLORS, SHAPES)) - unseen
    assert {c for c, _ in seen} == set(COLORS)
    assert {s for _, s in seen} == set(SHAPES)


def test_swaps_are_exactly_those_within():
    unseen = unseen_compositions(RECTANGLES, tuple(COLORS), SHAPES)
    found = set(swaps(unseen))
    expected = {
        Swap((c1, c2), (s1, s2))
        for c1 in COLORS for c2 in COLORS if c1 < c2
        for s1 in SHAPES for s2 in SHAPES if s1 < s2
        if {(c1, s1), (c1, s2), (c2, s1), (c2, s2)} <= unseen
    }  # fmt: skip
    assert found == expected
    assert len(found) >= 2


def test_rectangles_cut_by_the_world_are_left_out():
    colors, shapes = ["red", "blue", "green"], ["cube", "cone", "cylinder"]
    assert unseen_compositions(RECTANGLES, colors, shapes) == set()


@pytest.mark.parametrize(
    "rectangle", [(("red", "bleu"), ("cube", "cone")), (("red",), ("cube", "cone")), ((), ())]
)
def test_wrong_rectangles(rectangle):
    with refused(r"expected unseen rectangles .* got"):
        unseen_compositions([rectangle], tuple(COLORS), SHAPES)
