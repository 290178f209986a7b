import random

import pytest

from data_builders.scenes.captions import INVERSE, clear_relation
from data_builders.scenes.grammar import (
    Scene,
    SceneObject,
    WorldSpec,
    directions,
    sample_scene,
)
from data_builders.scenes.statements import (
    Noun,
    article,
    counted,
    edges,
    exchangeable,
    found,
    noun,
    related,
    sayable,
    there,
    varied,
    worded,
)


def thing(shape: str, color: str, right: float, behind: float = 0.0, **more) -> SceneObject:
    axes = directions()
    x, y = (right * axes["right"][k] + behind * axes["behind"][k] for k in (0, 1))
    values = {"material": "rubber", "texture": "plain", "size": "large", "radius": 0.75} | more
    return SceneObject(shape, color, center=(x, y, 0.75), **values)


RED, BLUE = (("color", "red"),), (("color", "blue"),)
SCENE = Scene((thing("cube", "red", -1.5), thing("cone", "blue", 1.5), thing("cube", "gray", 1.2)))


def test_a_noun_means_what_has_all_its_words():
    assert found(SCENE, Noun("cube")) == [0, 2]
    assert found(SCENE, Noun("cube", RED)) == [0]
    assert found(SCENE, Noun("cube", RED).denying("color")) == [2]
    assert found(SCENE, Noun("cube", (*RED, ("color", "gray")))) == []
    assert noun(SCENE.objects[1], ["size", "color"]).matches(SCENE.objects[1])


def test_a_noun_with_another_word():
    red = Noun("cube", RED)
    assert red.having("shape", "cone") == Noun("cone", RED)
    assert red.having("color", "blue") == Noun("cube", BLUE)
    assert str(red.having("size", "small")) == "small red cube"
    assert (red.get("shape"), red.get("color"), red.get("size")) == ("cube", "red", None)


def test_three_truths_of_a_relation():
    cube, cone = Noun("cube", RED), Noun("cone")
    assert related(SCENE, cube, "left", cone) is True
    assert related(SCENE, cube, "right", cone) is False
    assert related(SCENE, Noun("cube", (("color", "gray"),)), "left", cone) is None  # by 0.3
    assert related(SCENE, Noun("torus"), "left", cone) is False
    assert related(SCENE, Noun("cube"), "left", cone) is True  # one of them is


def test_each_noun_wants_an_object_of_its_own():
    assert there(SCENE, Noun("cube"), Noun("cube")) is True
    assert there(SCENE, Noun("cube", RED), Noun("cube", RED)) is None
    assert there(SCENE, Noun("cube"), Noun("torus")) is False


def test_edges_are_the_clear_relations_both_ways_round():
    for seed in range(20):
        spec = WorldSpec(min_objects=3, stack_probability=0.5)
        scene = sample_scene(spec, random.Random(seed))
        stated = edges(scene, range(len(scene.objects)))
        assert {(j, INVERSE[name], i) for i, name, j in stated} == set(stated)
        assert all(clear_relation(scene, i, j) == name for i, name, j in stated)


def test_an_exchange_must_make_both_false():
    assert exchangeable(SCENE, 0, 1, "color") == (
        (Noun("cube", RED), Noun("cone", BLUE)),
        (Noun("cube", BLUE), Noun("cone", RED)),
    )
    assert exchangeable(SCENE, 0, 2, "color") is None  # both are cubes
    assert exchangeable(SCENE, 0, 1, "material") is None  # both are of rubber
    assert exchangeable(SCENE, 0, 1, "texture") is None  # nobody says plain


def test_words():
    assert worded(Noun("cube", RED), "on", Noun("torus")) == "a red cube on top of a torus"
    assert article(Noun("orange")) == "an orange"
    assert (counted(SCENE, "cube"), counted(SCENE, None), counted(SCENE, "torus")) == (2, 3, 0)


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        (WorldSpec(textures=("plain",), sizes=("large",)), ["color", "material"]),
        (WorldSpec(textures=("plain", "striped"), materials=("metal",)),
         ["color", "size", "texture"]),
    ],
)  # fmt: skip
def test_what_does_not_vary_is_not_said(spec, kinds):
    assert list(varied(spec)) == kinds
    assert "plain" not in varied(spec).get("texture", ())
    assert sayable(SCENE.objects[0], ["color", "texture"]) == ["color"]
