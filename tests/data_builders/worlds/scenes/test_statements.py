import random

import pytest

from data_builders.worlds.scenes.formats.context import SceneContext
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import Scene, SceneObject, camera
from data_builders.worlds.scenes.statements import (
    Noun,
    exists,
    relation_holds,
    stated_attributes,
    stated_kinds,
)


def scene_object(shape: str, color: str, right: float, behind: float = 0.0, **more) -> SceneObject:
    axes = camera().axes
    x, y = (right * axes["right"][k] + behind * axes["behind"][k] for k in (0, 1))
    values = {"material": "rubber", "texture": "plain", "size": "large", "radius": 0.75} | more
    return SceneObject(shape, color, center=(x, y, 0.75), **values)


RED, BLUE = (("color", "red"),), (("color", "blue"),)
OBJECTS = (("cube", "red", -1.5), ("cone", "blue", 1.5), ("cube", "gray", 1.2))
SCENE = Scene(tuple(scene_object(*one) for one in OBJECTS))


def test_a_noun_refers_to_objects_with_all_its_words():
    assert Noun("cube").referents(SCENE) == [0, 2]
    assert Noun("cube", RED).referents(SCENE) == [0]
    assert Noun("cube", RED).negating("color").referents(SCENE) == [2]
    assert Noun("cube", (*RED, ("color", "gray"))).referents(SCENE) == []
    assert Noun.of(SCENE.objects[1], ["size", "color"]).matches(SCENE.objects[1])
    # A noun with another word.
    red = Noun("cube", RED)
    assert red.replaced("shape", "cone") == Noun("cone", RED)
    assert red.replaced("color", "blue") == Noun("cube", BLUE)
    assert str(red.replaced("size", "small")) == "small red cube"
    assert (red.get("shape"), red.get("color"), red.get("size")) == ("cube", "red", None)


def test_three_truths_of_a_relation_and_of_nouns_with_different_objects():
    cube, cone = Noun("cube", RED), Noun("cone")
    assert relation_holds(SCENE, cube, "left", cone) is True
    assert relation_holds(SCENE, cube, "right", cone) is False
    assert relation_holds(SCENE, Noun("cube", (("color", "gray"),)), "left", cone) is None  # by 0.3
    assert relation_holds(SCENE, Noun("torus"), "left", cone) is False
    assert relation_holds(SCENE, Noun("cube"), "left", cone) is True  # one of them is
    assert exists(SCENE, Noun("cube"), Noun("cube")) is True
    assert exists(SCENE, Noun("cube", RED), Noun("cube", RED)) is None
    assert exists(SCENE, Noun("cube"), Noun("torus")) is False


def test_an_exchange_must_make_both_false():
    context = SceneContext(SCENE, WorldSpec(), random.Random(0))
    found = {(i, j): nouns for nouns, i, j, _ in context.exchanges("color")}
    assert found.keys() == {(0, 1), (1, 0), (1, 2), (2, 1)}  # 0 and 2 are both cubes
    assert found[0, 1] == (
        (Noun("cube", RED), Noun("cone", BLUE)),
        (Noun("cube", BLUE), Noun("cone", RED)),
    )
    # All are of rubber, and nobody says plain.
    assert not list(context.exchanges("material", "texture"))


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        (WorldSpec(textures=("plain",), sizes=("large",)), ["color", "material"]),
        (WorldSpec(textures=("plain", "striped"), materials=("metal",)),
         ["color", "size", "texture"]),
    ],
)  # fmt: skip
def test_constant_attributes_are_not_stated(spec, kinds):
    assert list(stated_attributes(spec)) == kinds
    assert "plain" not in stated_attributes(spec).get("texture", ())
    assert stated_kinds(SCENE.objects[0], ["color", "texture"]) == ["color"]
