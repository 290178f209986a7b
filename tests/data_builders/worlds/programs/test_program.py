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
from tests.data_builders.worlds.programs.test_generate import values_on_sets
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


# -- the naive executor --------------------------------------------------------------------------


def random_program(rng: random.Random) -> tuple[Step, ...]:
    """Steps of any functions whose inputs are there; the last step is any of them."""
    steps, types = [Step("scene")], [Type.OBJECT_SET]
    side = {"relation": RELATIONS, "": [""]} | WORDS
    for _ in range(rng.randint(2, 20)):
        fit = [name for name in sorted(CATALOGUE) if {*CATALOGUE[name].inputs} <= {*types}]
        name = rng.choice(fit)
        function = CATALOGUE[name]
        inputs = [[i for i, t in enumerate(types) if t == kind] for kind in function.inputs]
        value = rng.choice(side[function.side])
        steps.append(Step(name, tuple(rng.choice(few) for few in inputs), value))
        types.append(function.output)
    return tuple(steps)


def test_random_programs_have_the_answers_of_a_naive_executor(tmp_path):
    rng, raw = random.Random(1), content(60, seed=2, low=1, high=5)["scenes"]
    scenes = read_scenes(written(tmp_path, raw))
    ill_posed, seen = 0, {}
    for _ in range(2000):
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
            assert value == (frozenset(expected) if isinstance(expected, list) else expected)
            seen.setdefault(part[-1].function, set()).add(value)
    assert ill_posed > 100
    assert seen.keys() == CATALOGUE.keys()
    assert len(CATALOGUE) == 26
    assert min(len(values) for name, values in seen.items() if "equal" not in name) > 1


# -- effective questions -------------------------------------------------------------------------


def test_sets_of_values_are_no_answer(row):
    assert values_on_sets(chain("query_color"), row) == {"red", "blue", "green"}
    assert values_on_sets(chain("same_shape", "query_shape"), row) == {"cube"}
    sphere = (Step("scene"), Step("filter_shape", (2,), "sphere"), Step("query_shape", (3,)))
    program = (*chain("query_shape"), *sphere, Step("equal_shape", (1, 4)))
    assert values_on_sets(program, row) == {True, False}


# -- files ---------------------------------------------------------------------------------------


def broken(change) -> list:
    scenes = content(2, seed=4, low=4, high=4)["scenes"]
    change(scenes)
    return scenes


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s[1]["objects"][2].pop("material"), "nothing at scenes/1/objects/2/material"),
        (lambda s: s[1].update(image_index="1"), "got '1' at scenes/1/image_index"),
        (lambda s: s[1]["relationships"]["left"].pop(), "a list for each of 4 objects"),
        *(
            (lambda s, k=k: s[0]["relationships"]["front"].__setitem__(2, [k]), rf"\[{k}\] at 2")
            for k in (4, 2)
        ),
        (lambda s: s.clear(), r"got \[\] at scenes"),
    ],
)
def test_a_malformed_scene_is_refused_by_its_field(tmp_path, change, field):
    with refused(field):
        read_scenes(written(tmp_path, broken(change)))
