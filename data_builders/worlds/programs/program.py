"""Functional programs: CLEVR's functions, and steps that take their inputs from earlier steps.

In: steps and a scene. Out: answers, and steps in CLEVR's JSON. Never: a guess at an ill-posed
program, or a value of another type than the catalogue says.
Source: Johnson et al. 2017, section 3 and appendix A.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Step:
    """One function of a program; `value` is the side input of `filter_*` and `relate`, else ""."""

    function: str
    inputs: tuple[int, ...] = ()
    value: str = ""


Program = tuple[Step, ...]


def execute(program: Sequence[Step], scene: SceneGraph) -> Any:
    """Returns the value of the last step.

    Raises:
        IllPosedError: A `unique` gets a set that has not exactly one object.

    Example:
        >>> cube = {"size": "small", "color": "red", "material": "metal", "shape": "cube"}
        >>> scene = SceneGraph("a.png", 0, "val", (cube,), {})
        >>> execute((Step("scene"), Step("unique", (0,)), Step("query_color", (1,))), scene)
        'red'
    """
    values: list[Any] = []
    for step in program:
        side = (step.value,) if step.value else ()
        inputs = (values[i] for i in step.inputs)
        values.append(CATALOGUE[step.function].compute(scene, *inputs, *side))
    return values[-1]


def answer_word(value: Any) -> str:
    """Returns an answer as CLEVR's files state it.

    Example:
        >>> answer_word(True), answer_word(3), answer_word("red")
        ('yes', '3', 'red')
    """
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def encode(program: Sequence[Step]) -> list[dict[str, Any]]:
    """Returns the program as CLEVR's questions JSON holds it."""
    steps = []
    for step in program:
        values = [step.value] if step.value else []
        steps.append(
            {"function": step.function, "inputs": list(step.inputs), "value_inputs": values}
        )
    return steps


def answered_by_halves(program: Sequence[Step], scene: SceneGraph) -> bool:
    """Tells whether the program has the same answer if relations are halves of the image.

    "Left of the cube" is read as the left half, "front" as the lower one. False, too, where a
    reference then fits no object or several. Source: section 4.6 (spatial reasoning).

    Example:
        >>> cubes = tuple({"size": "small", "color": color, "material": "metal", "shape": "cube"}
        ...          for color in ("red", "blue"))
        >>> none, red, both = frozenset(), frozenset([0]), frozenset([0, 1])
        >>> how_many_left_of_the_blue_one = (
        ...     Step("scene"), Step("filter_color", (0,), "blue"), Step("unique", (1,)),
        ...     Step("relate", (2,), "left"), Step("count", (3,)))
        >>> for left_half in (red, both):
        ...     halves = {"left": left_half, "right": both - left_half}
        ...     scene = SceneGraph("a.png", 0, "val", cubes, {"left": (none, red)}, halves)
        ...     answered_by_halves(how_many_left_of_the_blue_one, scene)
        True
        False
    """
    count = len(scene.objects)
    related = {name: (half,) * count for name, half in scene.halves.items()}
    try:
        return execute(program, replace(scene, related=related)) == execute(program, scene)
    except IllPosedError:
        return False
