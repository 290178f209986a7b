from data_builders.worlds.scenes.formats import crepe_captions
from data_builders.worlds.scenes.statements import Noun

CAPTION = crepe_captions.Caption(
    (Noun("cube", (("color", "red"),)), Noun("cone", (("color", "blue"),)), Noun("torus")),
    ((0, "left", 1),),
)


def test_swaps_negations_and_replacements_of_one_atom():
    assert [str(caption) for caption in crepe_captions.swapped(CAPTION)] == [
        "red cone to the left of blue cube. there is a torus.",
        "blue cube to the left of red cone. there is a torus.",
        "blue cone to the left of red cube. there is a torus.",
        "red torus to the left of blue cone. there is a cube.",
        "red cube to the left of blue torus. there is a cone.",
    ]
    texts = [str(caption) for caption in crepe_captions.negated(CAPTION)]
    assert texts[:5] == [
        "red cube to the left of blue cone. there is no torus.",
        "red cube not to the left of blue cone. there is a torus.",
        "there is no red cube to the left of a blue cone. there is a torus.",
        "not red cube to the left of blue cone. there is a torus.",
        "red cube to the left of not blue cone. there is a torus.",
    ]
    assert "there is no not red cube to the left of a blue cone. there is a torus." in texts
    assert str(CAPTION) not in texts
    other = {"color": ("red", "green")}
    texts = [str(caption) for caption in crepe_captions.replaced(CAPTION, other, ("cube", "cone"))]
    assert "green cube to the left of blue cone. there is a torus." in texts
    assert "red cube under blue cone. there is a torus." in texts
    assert "red cube to the left of blue cone. there is a cone." in texts
    words = [len({*t.split()} ^ {*str(CAPTION).split()}) for t in texts if " cone." in t]
    assert max(words) <= 6
