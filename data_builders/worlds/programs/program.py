"""Functional programs: steps that name a function and the earlier steps it takes its inputs from.

In: steps, or a program of a CLEVR questions JSON. Out: checked programs, answers. Never: a guess at
an ill-posed program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.worlds.programs.functions import CATALOGUE, Type
from data_builders.worlds.programs.scene_graph import RELATIONS, SceneGraph
from vlmtune.errors import UserError


@dataclass(frozen=True)
class Step:
    """One function of a program.

    Args:
        function: A name in the catalogue.
        inputs: Numbers of the steps whose outputs it takes.
        value: The side input of `filter_*` and `relate`, "" for the others.
    """

    function: str
    inputs: tuple[int, ...] = ()
    value: str = ""


Program = tuple[Step, ...]


def check(program: Sequence[Step]) -> Type:
    """Returns the type of the answer: the output of the last step.

    Raises:
        UserError: A function is unknown, an input is not an earlier step or has the wrong type, or
            a side input is missing or not expected.

    Example:
        >>> check((Step("scene"), Step("filter_color", (0,), "red"), Step("count", (1,))))
        <Type.INTEGER: 'integer'>
    """
    types: list[Type] = []
    for number, step in enumerate(program):
        function = CATALOGUE.get(step.function)
        if function is None:
            raise _error(number, "a function of the catalogue", repr(step.function))
        if not all(0 <= i < number for i in step.inputs):
            raise _error(number, "inputs from earlier steps", str(list(step.inputs)))
        came = tuple(types[i] for i in step.inputs)
        if came != function.inputs:
            expected = ", ".join(function.inputs) or "nothing"
            raise _error(number, f"{expected} for {step.function}", ", ".join(came) or "nothing")
        known = step.value in RELATIONS if function.side == "relation" else bool(step.value)
        if known is not bool(function.side):
            kind = function.side or "no side input"
            raise _error(number, f"{kind} for {step.function}", repr(step.value))
        types.append(function.output)
    if not types:
        raise _error(0, "at least one step", "none")
    return types[-1]


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


def decode(steps: Sequence[Any]) -> Program:
    """Reads a program of a questions JSON: of CLEVR's files, or with `type` and `side_inputs`.

    Raises:
        UserError: It is not such a program, or its types do not fit.

    Example:
        >>> decode([{"type": "scene", "inputs": [], "side_inputs": []}])
        (Step(function='scene', inputs=(), value=''),)
    """
    program = []
    for number, step in enumerate(steps):
        try:
            values = [*(step["value_inputs"] if "value_inputs" in step else step["side_inputs"])]
            name = step["function"] if "function" in step else step["type"]
            inputs = tuple(int(i) for i in step["inputs"])
        except (KeyError, TypeError, ValueError) as error:
            raise _error(number, "function, inputs and value_inputs", f"{step!r:.60}") from error
        program.append(Step(name, inputs, *map(str, values[:1])))
    check(program)
    return tuple(program)


def _error(number: int, expected: str, came: str) -> UserError:
    return UserError(f"expected {expected} at step {number} of a program, got {came}: correct it")
