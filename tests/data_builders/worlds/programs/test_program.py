import random

import pytest

from data_builders.worlds.programs.functions import CATALOGUE, IllPosedError, Type
from data_builders.worlds.programs.program import Step, encode, execute
from data_builders.worlds.programs.scene_graph import ATTRIBUTES, RELATIONS, SceneGraph, read_scenes
from tests.data_builders.conftest import dump
from tests.data_builders.worlds.programs.raw_scenes import (
    WORDS,
    IllPosed,
    content,
    naive,
    with_relations,
)
from tests.refusals import refused

# Seen from the camera, from left to right along one line: nothing is in front of anything.
ROW = [
    ("small", "red", "metal", "cube"),
    ("large", "blue", "rubber", "cube"),
    ("large", "red", "rubber", "sphere"),
    ("small", "green", "metal", "cylinder"),
]


def written(folder, scenes):
    return dump(folder / "scenes.json", {"scenes": scenes})


@pytest.fixture
def row(tmp_path) -> SceneGraph:
    objects = [
        dict(zip(ATTRIBUTES, words, strict=True)) | {"3d_coords": [0.6 * x, 0.8 * x, 0.5]}
        for x, words in enumerate(ROW)
    ]
    (scene,) = read_scenes(written(tmp_path, [with_relations(objects)]))
    return scene


def chain(*names: str) -> tuple[Step, ...]:
    """Steps that each take the one before: "filter_color red", "unique", ..."""
    steps = [Step("scene")]
    for number, name in enumerate(names):
        function, _, value = name.partition(" ")
        steps.append(Step(function, (number,), value))
    return tuple(steps)


def joined(first: tuple[Step, ...], second: tuple[Step, ...], *names: str) -> tuple[Step, ...]:
    """Two programs, a function of both outputs, and functions after it."""
    n = len(first)
    moved = [Step(s.function, tuple(i + n for i in s.inputs), s.value) for s in second]
    steps = [*first, *moved, Step(names[0], (n - 1, n + len(second) - 1))]
    for name in names[1:]:
        steps.append(Step(name, (len(steps) - 1,)))
    return tuple(steps)


BLUE = ("filter_color blue", "unique")
RED, CUBE = chain("filter_color red"), chain("filter_shape cube")
ONE, TWO = chain("filter_shape sphere", "count"), chain("filter_color red", "count")
CASES = {
    "left": (chain(*BLUE, "relate left"), {0}),
    "front": (chain(*BLUE, "relate front"), set()),
    "same_size": (chain(*BLUE, "same_size"), {2}),
    "query_color": (chain(*BLUE, "query_color"), "blue"),
    "exist": (chain("filter_color cyan", "exist"), False),
    "union": (joined(RED, CUBE, "union"), {0, 1, 2}),
    "intersect": (joined(RED, CUBE, "intersect"), {0}),
    "equal_integer": (joined(TWO, TWO, "equal_integer"), True),
    "less_than": (joined(ONE, TWO, "less_than"), True),
    "greater_than": (joined(TWO, TWO, "greater_than"), False),
}
SPHERE = ("filter_shape sphere", "unique")
for attribute, equal in zip(ATTRIBUTES, (True, False, True, False), strict=True):
    one, other = (chain(*words, f"query_{attribute}") for words in (BLUE, SPHERE))
    CASES[f"equal_{attribute}"] = (joined(one, other, f"equal_{attribute}"), equal)


@pytest.mark.parametrize("case", CASES)
def test_functions_of_a_scene_with_known_answers(row, case):
    program, expected = CASES[case]
    assert execute(program, row) == (frozenset(expected) if isinstance(expected, set) else expected)


# -- the naive executor --------------------------------------------------------------------------


def random_program(rng: random.Random) -> tuple[Step, ...]:
    """Steps of any functions whose inputs are there; the last step is any of them."""
    steps, types = [Step("scene")], [Type.OBJECT_SET]
    for _ in range(rng.randint(2, 14)):
        name = rng.choice(sorted(CATALOGUE))
        function = CATALOGUE[name]
        fitting = [[i for i, t in enumerate(types) if t == kind] for kind in function.inputs]
        if all(fitting):
            side = {"relation": RELATIONS, "": [""]} | WORDS
            value = rng.choice(side[function.side])
            steps.append(Step(name, tuple(rng.choice(few) for few in fitting), value))
            types.append(function.output)
    return tuple(steps)


def test_random_programs_have_the_answers_of_a_naive_executor(tmp_path):
    rng, raw = random.Random(1), content(60, seed=2)["scenes"]
    scenes = read_scenes(written(tmp_path, raw))
    ill_posed, used = 0, {program[-1].function for program, _ in CASES.values()}
    for _ in range(3000):
        number, program = rng.randrange(len(raw)), random_program(rng)
        for last in range(1, len(program) + 1):
            part = program[:last]
            try:
                expected = naive(encode(part), raw[number])
            except IllPosed:
                ill_posed += 1
                # The naive executor runs only the steps it needs.
                with pytest.raises(IllPosedError):
                    execute(part, scenes[number])
                break
            value = execute(part, scenes[number])
            used.add(part[-1].function)
            assert value == (frozenset(expected) if isinstance(expected, list) else expected)
    assert ill_posed > 100
    assert used == CATALOGUE.keys()
    assert len(CATALOGUE) == 26


# -- files ---------------------------------------------------------------------------------------


def broken(change) -> list:
    scenes = content(2, seed=4, low=4, high=4)["scenes"]
    change(scenes)
    return scenes


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s[1]["relationships"]["left"].pop(), "a list for each of 4 objects"),
        (
            lambda s: s[0]["relationships"]["front"].__setitem__(2, [4]),
            r"front of .* got \[4\] at 2",
        ),
        (
            lambda s: s[0]["relationships"]["front"].__setitem__(2, [2]),
            r"front of .* got \[2\] at 2",
        ),
    ],
)
def test_a_malformed_scene_is_refused_by_its_field(tmp_path, change, field):
    with refused(field):
        read_scenes(written(tmp_path, broken(change)))
