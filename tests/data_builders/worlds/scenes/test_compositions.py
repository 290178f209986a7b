import itertools

from data_builders.worlds.scenes.compositions import RECTANGLES, Swap, swaps, unseen_compositions
from data_builders.worlds.scenes.scene import COLORS, SHAPES


def test_the_default_split_and_its_swaps():
    unseen = unseen_compositions(RECTANGLES, tuple(COLORS), SHAPES)
    assert len(unseen) == 8
    # Every colour and every shape is seen in training, in other company.
    seen = set(itertools.product(COLORS, SHAPES)) - unseen
    assert {c for c, _ in seen} == set(COLORS)
    assert {s for _, s in seen} == set(SHAPES)
    colors, shapes = ["red", "blue", "green"], ["cube", "cone", "cylinder"]
    assert unseen_compositions(RECTANGLES, colors, shapes) == set()
    found = set(swaps(unseen))
    expected = set()
    for colors in itertools.combinations(sorted(COLORS), 2):
        for shapes in itertools.combinations(sorted(SHAPES), 2):
            if unseen.issuperset(itertools.product(colors, shapes)):
                expected.add(Swap(colors, shapes))
    assert found == expected
    assert len(found) >= 2
