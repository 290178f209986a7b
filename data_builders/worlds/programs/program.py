"""Functional programs: steps that name a function and the earlier steps it takes its inputs from.

In: steps. Out: answers, and steps in CLEVR's JSON. Never: a guess at an ill-posed program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.worlds.programs.functions import CATALOGUE
from data_builders.worlds.programs.scene_graph import SceneGraph


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
