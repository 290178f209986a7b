"""CLEVR's functions: their types, and what each computes on a scene.

In: values of a program. Out: a value. Never: a value of another type than the catalogue says.
Source: Johnson et al. 2017, section 3 and appendix A.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from data_builders.worlds.programs.scene_graph import ATTRIBUTES, SceneGraph


class Type(StrEnum):
    """Types of values; those of attributes are named as the attributes."""

    OBJECT = "object"
    OBJECT_SET = "object set"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    SIZE = "size"
    COLOR = "color"
    MATERIAL = "material"
    SHAPE = "shape"


class IllPosedError(ValueError):
    """A program whose `unique` gets a set that has not exactly one object."""


@dataclass(frozen=True)
class Function:
    """A basic function: `compute` takes the scene, the inputs and the side input.

    `side` is what the side input names: an attribute, "relation", or "" for none.
    """

    inputs: tuple[Type, ...]
    output: Type
    side: str
    compute: Callable[..., Any]


def _unique(scene: SceneGraph, objects: frozenset[int]) -> int:
    if len(objects) != 1:
        raise IllPosedError(f"unique of {len(objects)} objects")
    return min(objects)


def _of_attribute(attribute: str) -> dict[str, Function]:
    kind = Type(attribute)

    def keep(scene: SceneGraph, objects: frozenset[int], value: str) -> frozenset[int]:
        return scene.having(attribute, value, objects)

    def query(scene: SceneGraph, obj: int) -> str:
        return scene.objects[obj][attribute]

    def same(scene: SceneGraph, obj: int) -> frozenset[int]:
        return scene.having(attribute, scene.objects[obj][attribute], scene.all) - {obj}

    def equal(scene: SceneGraph, first: str, second: str) -> bool:
        return first == second

    return {
        f"filter_{attribute}": Function((Type.OBJECT_SET,), Type.OBJECT_SET, attribute, keep),
        f"query_{attribute}": Function((Type.OBJECT,), kind, "", query),
        f"same_{attribute}": Function((Type.OBJECT,), Type.OBJECT_SET, "", same),
        f"equal_{attribute}": Function((kind, kind), Type.BOOLEAN, "", equal),
    }


_SET, _TWO_SETS = (Type.OBJECT_SET,), (Type.OBJECT_SET, Type.OBJECT_SET)
_TWO_INTEGERS = (Type.INTEGER, Type.INTEGER)
_ATTRIBUTE_FUNCTIONS = [_of_attribute(attribute) for attribute in ATTRIBUTES]

CATALOGUE: dict[str, Function] = {
    "scene": Function((), Type.OBJECT_SET, "", lambda scene: scene.all),
    "unique": Function(_SET, Type.OBJECT, "", _unique),
    "relate": Function(
        (Type.OBJECT,),
        Type.OBJECT_SET,
        "relation",
        lambda scene, obj, relation: scene.related[relation][obj],
    ),
    "union": Function(_TWO_SETS, Type.OBJECT_SET, "", lambda scene, a, b: a | b),
    "intersect": Function(_TWO_SETS, Type.OBJECT_SET, "", lambda scene, a, b: a & b),
    "count": Function(_SET, Type.INTEGER, "", lambda scene, objects: len(objects)),
    "exist": Function(_SET, Type.BOOLEAN, "", lambda scene, objects: bool(objects)),
    "equal_integer": Function(_TWO_INTEGERS, Type.BOOLEAN, "", lambda scene, a, b: a == b),
    "less_than": Function(_TWO_INTEGERS, Type.BOOLEAN, "", lambda scene, a, b: a < b),
    "greater_than": Function(_TWO_INTEGERS, Type.BOOLEAN, "", lambda scene, a, b: a > b),
    **{name: f for functions in _ATTRIBUTE_FUNCTIONS for name, f in functions.items()},
}
