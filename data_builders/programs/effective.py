"""The effective question: the smallest pruned program with the same answer on the same scene.

In: a program and a scene. Out: a pruned program. Never: a change of the question itself.

A pruned program takes the scene in the place of an object or a set of objects that the program
computes: one such place on each branch. It is executed with sets: `unique` returns its input,
functions of an object are mapped over a set and their outputs united, so queries and comparisons
return sets of values. It has the same answer if this set holds that answer alone.
Source: Johnson et al. 2017, section 4 (question size), appendix on effective question size.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from data_builders.programs.functions import CATALOGUE, Type
from data_builders.programs.program import Program, Step, execute
from data_builders.programs.scene_graph import SceneGraph

_SETS = {Type.OBJECT, Type.OBJECT_SET}


def execute_on_sets(program: Sequence[Step], scene: SceneGraph) -> frozenset[Any]:
    """Returns the possible answers of a program that may be ill-posed."""
    values: list[Any] = []
    for step in program:
        function = CATALOGUE[step.function]
        inputs = [values[i] for i in step.inputs]
        side = (step.value,) if step.value else ()
        if step.function == "unique":
            values.append(inputs[0])
        elif all(kind == Type.OBJECT_SET for kind in function.inputs):
            value = function.compute(scene, *inputs, *side)
            values.append(value if function.output == Type.OBJECT_SET else frozenset([value]))
        else:
            outputs = [function.compute(scene, *one, *side) for one in product(*inputs)]
            united = function.output == Type.OBJECT_SET
            values.append(frozenset().union(*outputs) if united else frozenset(outputs))
    return values[-1]


def effective_question(program: Program, scene: SceneGraph) -> Program:
    """Returns the smallest pruned program with the answer of `program`, the first of equal size.

    Example:
        >>> cube = {"size": "small", "color": "red", "material": "metal", "shape": "cube"}
        >>> scene = SceneGraph("a.png", 0, "val", (cube,), {})
        >>> program = (Step("scene"), Step("filter_shape", (0,), "cube"), Step("unique", (1,)),
        ...            Step("query_color", (2,)))
        >>> [step.function for step in effective_question(program, scene)]
        ['scene', 'query_color']
    """
    answer = frozenset([execute(program, scene)])
    pruned = sorted((_flat(tree) for tree in _cuts(program, len(program) - 1)), key=len)
    return next(one for one in pruned if execute_on_sets(one, scene) == answer)


_Tree = tuple[Step, tuple[Any, ...]]


def _cuts(program: Program, number: int) -> Iterator[_Tree]:
    """The tree that ends in a step, whole and with each of its branches cut once."""
    step = program[number]
    options = [
        [*_cuts(program, i), *([(Step("scene"), ())] if _replaceable(program, i) else [])]
        for i in step.inputs
    ]
    for inputs in product(*options):
        yield step, inputs


def _replaceable(program: Program, number: int) -> bool:
    function = program[number].function
    return function != "scene" and CATALOGUE[function].output in _SETS


def _flat(tree: _Tree) -> Program:
    """A tree as steps, inputs first."""
    steps: list[Step] = []

    def add(tree: _Tree) -> int:
        step, inputs = tree
        numbers = tuple(add(one) for one in inputs)
        steps.append(Step(step.function, numbers, step.value))
        return len(steps) - 1

    add(tree)
    return tuple(steps)
