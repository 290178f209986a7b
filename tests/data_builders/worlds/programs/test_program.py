import random
from collections import Counter

import pytest

from data_builders.worlds.programs.program import (
    CATALOGUE,
    IllPosedError,
    Step,
    Type,
    encode,
    execute,
)
from data_builders.worlds.programs.scene_graph import RELATIONS, read_scenes
from tests.data_builders.conftest import dump
from tests.data_builders.worlds.programs.raw_scenes import WORDS, IllPosed, content, naive
from tests.refusals import refused


def random_step(rng: random.Random, types: list[Type]) -> Step:
    """A step of any function whose inputs are among the outputs of the earlier steps."""
    usable = [name for name in sorted(CATALOGUE) if set(CATALOGUE[name].inputs) <= set(types)]
    name = rng.choice(usable)
    function = CATALOGUE[name]
    inputs = []
    for kind in function.inputs:
        fitting = [number for number, output in enumerate(types) if output == kind]
        inputs.append(rng.choice(fitting))
    sides = {"relation": RELATIONS, "": [""]} | WORDS
    return Step(name, tuple(inputs), rng.choice(sides[function.side]))


def test_random_programs_have_the_answers_of_a_naive_executor(tmp_path):
    rng, raw = random.Random(1), content(60, seed=2)["scenes"]
    scenes = read_scenes(dump(tmp_path / "scenes.json", {"scenes": raw}))
    ill_posed, used = 0, Counter[str]()
    for number, scene in enumerate(scenes * 10):
        program, types = (Step("scene"),), [Type.OBJECT_SET]
        for _ in range(30):
            longer = (*program, random_step(rng, types))
            try:
                expected = naive(encode(longer), raw[number % len(raw)])
            except IllPosed:
                ill_posed += 1
                with pytest.raises(IllPosedError):
                    execute(longer, scene)
                continue
            program = longer
            last = program[-1].function
            types.append(CATALOGUE[last].output)
            used[last] += 1
            value = execute(program, scene)
            assert value == (frozenset(expected) if isinstance(expected, list) else expected)
    assert ill_posed > 100
    assert used.keys() == CATALOGUE.keys()
    assert min(used.values()) > 10
    assert len(CATALOGUE) == 26


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[], [], []], "a list for each of 4 objects"),
        ([[], [], [4], []], r"scenes/1/relationships/front of .* got \[4\] at 2"),
        ([[], [], [2], []], r"got \[2\] at 2"),
        ([[], [], [1, 1], []], r"got \[1, 1\] at 2"),
    ],
)
def test_a_malformed_scene_is_refused_by_its_field(tmp_path, lists, message):
    scenes = content(2, seed=4, low=4, high=4)["scenes"]
    scenes[1]["relationships"]["front"] = lists
    with refused(message):
        read_scenes(dump(tmp_path / "scenes.json", {"scenes": scenes}))
