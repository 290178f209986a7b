"""Functional programs: steps that name a function and the earlier steps it takes its inputs from.

In: steps, or a program of a CLEVR questions JSON. Out: checked programs, answers. Never: a guess at
an ill-posed program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.worlds.programs.functions import CATALOGUE, Function, Type
from data_builders.worlds.programs.scene_graph import RELATIONS, SceneGraph
from vlmtune.errors import UserError
from vlmtune.storage.files import reading


@dataclass(frozen=True)
class Step:
    """One function of a program; `value` is the side input of `filter_*` and `relate`, else ""."""

    function: str
    inputs: tuple[int, ...] = ()
    value: str = ""


Program = tuple[Step, ...]


def check(program: Sequence[Step]) -> Type:
    """Returns the type of the answer: the output of the last step.

    Raises:
        UserError: A step names no function, or its inputs do not fit that function.

    Example:
        >>> check((Step("scene"), Step("filter_color", (0,), "red"), Step("count", (1,))))
        <Type.INTEGER: 'integer'>
    """
    types: list[Type] = []
    for number, step in enumerate(program):
        function = CATALOGUE.get(step.function)
        if function is None or not _fits(step, function, types):
            raise UserError(
                f"expected a function of the catalogue with inputs of its types, got {step} as "
                f"step {number} of a program: see docs/programs.md"
            )
        types.append(function.output)
    return types[-1]


def _fits(step: Step, function: Function, types: Sequence[Type]) -> bool:
    """Whether the inputs are earlier steps of the right types, and the side input is stated."""
    if not all(0 <= i < len(types) for i in step.inputs):
        return False
    stated = step.value in RELATIONS if function.side == "relation" else bool(step.value)
    inputs = tuple(types[i] for i in step.inputs)
    return inputs == function.inputs and stated is bool(function.side)


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
    with reading("a program", "function, inputs and value_inputs of each step"):
        for step in steps:
            values = [*(step["value_inputs"] if "value_inputs" in step else step["side_inputs"])]
            name = step["function"] if "function" in step else step["type"]
            inputs = tuple(map(int, step["inputs"]))
            program.append(Step(name, inputs, *map(str, values[:1])))
    check(program)
    return tuple(program)
