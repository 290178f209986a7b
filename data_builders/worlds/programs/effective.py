"""The effective question: the smallest pruned program with the same answer on the same scene.

In: a program and a scene. Out: a pruned program. Never: a change of the question itself.

A pruned program takes the scene in place of an object or a set of objects that the program
computes: one such place on each branch. It is executed with sets: `unique` returns its input,
functions of an object are mapped over a set and their outputs united, so queries and comparisons
return sets of values. It has the same answer if this set holds that answer alone.
Source: Johnson et al. 2017, section 4 (question size), appendix on effective question size.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from data_builders.worlds.programs.program import CATALOGUE, Program, Step, Type, execute
from data_builders.worlds.programs.scene_graph import Objects, SceneGraph

_SETS = {Type.OBJECT, Type.OBJECT_SET}


class _Tree(NamedTuple):
    """A pruned part of a program that ends in `step`, and how many functions it has."""

    size: int
    step: Step
    inputs: tuple[Any, ...] = ()


_SCENE = _Tree(1, Step("scene"))


def effective_question(program: Program, scene: SceneGraph) -> Program:
    """Returns the smallest pruned program with the answer of `program`.

    Example:
        >>> cube = {"size": "small", "color": "red", "material": "metal", "shape": "cube"}
        >>> scene = SceneGraph("a.png", 0, "val", (cube,), {})
        >>> program = (Step("scene"), Step("filter_shape", (0,), "cube"), Step("unique", (1,)),
        ...            Step("query_color", (2,)))
        >>> [step.function for step in effective_question(program, scene)]
        ['scene', 'query_color']
    """
    answer = frozenset([execute(program, scene)])
    return _flat(_smallest(program, len(program) - 1, scene)[answer])


def apply_to_sets(step: Step, inputs: Sequence[Objects | frozenset[Any]], scene: SceneGraph) -> Any:
    """Returns the output of a function on sets of inputs, a set of objects or of values."""
    function = CATALOGUE[step.function]
    side = (step.value,) if step.value else ()
    if step.function == "unique":
        return inputs[0]
    if all(kind == Type.OBJECT_SET for kind in function.inputs):
        outputs = [function.compute(scene, *inputs, *side)]
    else:
        outputs = [function.compute(scene, *one, *side) for one in product(*inputs)]
    if function.output == Type.OBJECT_SET:
        return frozenset().union(*outputs)
    return frozenset(outputs)


def _smallest(program: Program, number: int, scene: SceneGraph) -> dict[frozenset[Any], _Tree]:
    """By each value that a step has in some pruned program, the smallest such program."""
    step = program[number]
    options: list[list[tuple[frozenset[Any], _Tree]]] = []
    for i in step.inputs:
        smallest = _smallest(program, i, scene)
        function = CATALOGUE[program[i].function]
        if function.output in _SETS:
            smallest[scene.all] = _SCENE
        options.append(list(smallest.items()))
    out: dict[frozenset[Any], _Tree] = {}
    for chosen in product(*options):
        trees = tuple(tree for _, tree in chosen)
        tree = _Tree(1 + sum(one.size for one in trees), step, trees)
        value = apply_to_sets(step, [value for value, _ in chosen], scene)
        if value not in out or tree.size < out[value].size:
            out[value] = tree
    return out


def _flat(tree: _Tree) -> Program:
    """A tree as steps, inputs first."""
    steps: list[Step] = []

    def add(tree: _Tree) -> int:
        numbers = tuple(add(one) for one in tree.inputs)
        steps.append(Step(tree.step.function, numbers, tree.step.value))
        return len(steps) - 1

    add(tree)
    return tuple(steps)
