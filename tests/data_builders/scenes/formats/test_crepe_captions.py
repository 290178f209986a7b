import random

from data_builders.scenes.formats.crepe_captions import Caption, draw, negated, replaced, swapped
from data_builders.scenes.grammar import WorldSpec, sample_scene
from data_builders.scenes.statements import Noun, found, varied

SPEC = WorldSpec(min_objects=2, max_objects=4, stack_probability=0.5)
KINDS = varied(SPEC)
CAPTION = Caption(
    (Noun("cube", (("color", "red"),)), Noun("cone", (("color", "blue"),)), Noun("torus")),
    ((0, "left", 1),),
)


def test_words():
    assert str(CAPTION) == "red cube to the left of blue cone. there is a torus."


def test_swaps():
    assert [str(one) for one in swapped(CAPTION)] == [
        "red cone to the left of blue cube. there is a torus.",
        "blue cube to the left of red cone. there is a torus.",
        "blue cone to the left of red cube. there is a torus.",
        "red torus to the left of blue cone. there is a cube.",
        "red cube to the left of blue torus. there is a cone.",
    ]


def test_denials():
    found = [str(one) for one in negated(CAPTION)]
    assert found[:5] == [
        "red cube to the left of blue cone. there is no torus.",
        "red cube not to the left of blue cone. there is a torus.",
        "there is no red cube to the left of a blue cone. there is a torus.",
        "not red cube to the left of blue cone. there is a torus.",
        "red cube to the left of not blue cone. there is a torus.",
    ]
    assert "there is no not red cube to the left of a blue cone. there is a torus." in found
    assert str(CAPTION) not in found


def test_replacements_change_one_atom():
    texts = [str(one) for one in replaced(CAPTION, {"color": ("red", "green")}, ("cube", "cone"))]
    assert "green cube to the left of blue cone. there is a torus." in texts
    assert "red cube under blue cone. there is a torus." in texts
    assert "red cube to the left of blue cone. there is a cone." in texts
    words = [len({*t.split()} ^ {*str(CAPTION).split()}) for t in texts if " cone." in t]
    assert max(words) <= 6


def test_drawn_captions_are_true_have_their_atoms_and_are_unambiguous():
    rng = random.Random(0)
    made = 0
    for seed in range(40):
        scene = sample_scene(SPEC, random.Random(seed))
        for atoms in (4, 7, 11):
            caption = draw(scene, atoms, KINDS, rng)
            if caption is None:
                continue
            made += 1
            said = sum(len(one.said) for one in caption.nouns)
            assert len(caption.nouns) + len(caption.edges) + said == atoms
            assert caption.holds(scene) is True
            assert all(len(found(scene, one)) == 1 for one in caption.nouns)
    assert made > 60


def test_what_is_too_much_for_a_scene_is_not_said():
    scene = sample_scene(WorldSpec(min_objects=2, max_objects=2), random.Random(1))
    assert draw(scene, 30, KINDS, random.Random(0)) is None
