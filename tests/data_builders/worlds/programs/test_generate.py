import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from data_builders.worlds.programs.effective import apply_to_sets, effective_question
from data_builders.worlds.programs.families import FAMILIES
from data_builders.worlds.programs.generate import Generator
from data_builders.worlds.programs.program import Step, execute
from data_builders.worlds.programs.scene_graph import (
    ATTRIBUTES,
    SceneGraph,
    read_scenes,
    vocabulary,
)
from data_builders.worlds.programs.wording import NUMBERS, Wording, read_vocabulary
from tests.data_builders.conftest import dump
from tests.data_builders.worlds.programs.raw_scenes import WORDS, IllPosed, content, naive, word
from tests.refusals import refused

SCENES = 100  # with 10 questions each


@pytest.fixture(scope="module")
def raw() -> list[dict]:
    return content(SCENES, seed=11)["scenes"]


@pytest.fixture(scope="module")
def scenes(raw, tmp_path_factory) -> list[SceneGraph]:
    path = dump(tmp_path_factory.mktemp("clevr") / "scenes.json", {"scenes": raw})
    return read_scenes(path)


def generated(scenes, **options) -> list[dict]:
    generator = Generator(vocabulary(scenes), **options)
    numbers = {family.name: i for i, family in enumerate(FAMILIES)}
    return [
        question.row(i, numbers[question.instance.family.name])
        for i, question in enumerate(generator.questions(scenes))
    ]


@pytest.fixture(scope="module")
def rows(scenes) -> list[dict]:
    return generated(scenes)


def until(program: list[dict], last: int) -> list[dict]:
    """The program that ends in a step."""
    return program[: last + 1]


# -- families ------------------------------------------------------------------------------------


def test_there_are_90_families_of_different_programs_with_their_topology():
    assert len(FAMILIES) == len({family.name for family in FAMILIES}) == 90
    assert len({family.steps for family in FAMILIES}) == 90
    assert Counter(family.structure for family in FAMILIES) == {
        **dict.fromkeys(("zero_hop", "one_hop", "two_hop", "three_hop", "single_and"), 6),
        **{"single_or": 4, "same_relate": 28, "comparison": 16, "compare_integer": 12},
    }
    of = {family.name: (family.topology, family.relation) for family in FAMILIES}
    assert of["zero_hop-count"] == ("chain", "none")
    assert of["three_hop-query_color"] == ("chain", "spatial")
    assert of["single_and-exist"] == ("tree", "spatial")
    assert of["single_or-count-things"] == ("tree", "none")
    assert of["same_relate-size-count"] == ("chain", "same-attribute")
    assert of["same_relate-size-count-hop"] == ("chain", "both")
    assert of["comparison-color-0-0"] == ("tree", "none")


def test_a_family_has_several_texts_for_one_program():
    for family in FAMILIES:
        assert len(set(family.texts.questions)) >= 4, family.name
        assert family.texts.statements
        named = {slot.parameter for slot in family.steps if slot.parameter}
        for text in family.texts.questions:
            used = {field for field in named if any(f"{{{x}}}" in text for x in spellings(field))}
            assert used == named, (family.name, text)


def spellings(parameter: str) -> tuple[str, ...]:
    """The fields that state a parameter: A2, As2, aA2."""
    return parameter, f"{parameter[0]}s{parameter[1:]}", f"a{parameter}"


# -- programs ------------------------------------------------------------------------------------


def test_answers_are_those_of_a_naive_executor(rows, raw):
    assert 9.9 * SCENES < len(rows) <= 10 * SCENES  # a scene of three objects may answer fewer
    for row in rows:
        scene = raw[row["image_index"]]
        assert scene["image_filename"] == row["image_filename"]
        assert word(naive(row["program"], scene)) == row["answer"]
        assert len(row["program"]) == row["size"]
        assert row["program"][-1]["function"] == row["type"]


def test_no_relation_could_be_left_out(rows, raw):
    """What is described after a relation is not what is described in the whole scene."""
    checked = 0
    for row in rows:
        scene, program = raw[row["image_index"]], row["program"]
        for number, step in enumerate(program):
            if step["function"] != "relate" and not step["function"].startswith("same_"):
                continue
            last = number
            while program[last + 1]["function"].startswith("filter"):
                last += 1
            if program[last + 1]["function"] in ("intersect", "union"):
                continue
            without = [dict(one) for one in until(program, last)]
            without[number] = {"function": "scene", "inputs": [], "value_inputs": []}
            found = naive(until(program, last), scene)
            everywhere = naive(without, scene)
            start = naive(until(program, number - 1), scene)
            assert set(found) < set(everywhere)
            assert set(everywhere) - {start}
            if step["function"].startswith("same_"):
                assert set(found) < set(everywhere) - {start}
            checked += 1
    assert checked > len(rows) / 2


def test_both_branches_of_and_and_or_are_needed(rows, raw):
    checked = Counter()
    for row in rows:
        scene, program = raw[row["image_index"]], row["program"]
        for number, step in enumerate(program):
            if step["function"] not in ("intersect", "union"):
                continue
            last = number
            while program[last + 1]["function"].startswith("filter"):
                last += 1
            found = set(naive(until(program, last), scene))
            for branch in step["inputs"]:
                alone = [dict(one) for one in until(program, last)]
                alone[number] = {"function": "union", "inputs": [branch] * 2, "value_inputs": []}
                assert found != set(naive(alone, scene)) or (
                    step["function"] == "union" and not found
                )
            checked[step["function"]] += 1
    assert min(checked["intersect"], checked["union"]) >= 10


def test_no_two_references_are_one_object_and_none_states_what_is_asked_for(rows, raw):
    for row in rows:
        scene, program = raw[row["image_index"]], row["program"]
        found = [
            naive(until(program, n), scene)
            for n, step in enumerate(program)
            if step["function"] == "unique"
        ]
        assert len(found) == len(set(found))
        for number, step in enumerate(program):
            verb, _, kind = step["function"].partition("_")
            if verb not in ("query", "same"):
                continue
            last = number
            stated = []
            while (last := program[last]["inputs"][0]) >= 0:
                function = program[last]["function"]
                if function not in ("unique", *(f"filter_{kind}" for kind in ATTRIBUTES)):
                    break
                stated.append(function)
            assert f"filter_{kind}" not in stated


# -- effective questions -------------------------------------------------------------------------


def prunings(program: list[dict], last: int) -> list[list]:
    """Nested lists of all pruned programs: each branch whole or cut once."""
    step = program[last]
    inputs = []
    for i in step["inputs"]:
        options = prunings(program, i)
        kind = program[i]["function"].partition("_")[0]
        if kind in ("scene", "unique", "relate", "same", "filter", "intersect", "union"):
            options = [*options, ["scene", [], []]]
        inputs.append(options)
    return [[step["function"], step["value_inputs"], list(x)] for x in itertools.product(*inputs)]


def steps_of(tree: list) -> tuple[Step, ...]:
    steps: list[Step] = []

    def add(node: list) -> int:
        numbers = tuple(add(child) for child in node[2])
        steps.append(Step(node[0], numbers, *node[1]))
        return len(steps) - 1

    add(tree)
    return tuple(steps)


def values_on_sets(program, scene):
    """The possible answers of a program that may be ill-posed."""
    values = []
    for step in program:
        values.append(apply_to_sets(step, [values[i] for i in step.inputs], scene))
    return values[-1]


def test_the_effective_question_is_the_smallest_of_all_pruned_ones(rows, scenes):
    for row in rows[:: max(1, len(rows) // 150)]:
        scene = scenes[row["image_index"]]
        every = [steps_of(tree) for tree in prunings(row["program"], len(row["program"]) - 1)]
        whole = max(every, key=len)
        answer = execute(whole, scene)
        right = [len(one) for one in every if values_on_sets(one, scene) == {answer}]
        assert row["effective_size"] == min(right) == len(effective_question(whole, scene))


# -- absolute positions --------------------------------------------------------------------------


def test_halves_of_the_image_answer_some_questions(rows, raw):
    answered = Counter()
    for row in rows:
        scene, program = raw[row["image_index"]], row["program"]
        if all(step["function"] != "relate" for step in program):
            assert row["absolute"] == "none"
            continue
        try:
            by_halves = word(naive(program, scene, absolute=True))
        except IllPosed:
            by_halves = None
        assert row["absolute"] == ("yes" if by_halves == row["answer"] else "no")
        answered[row["absolute"]] += 1
    assert min(answered.values()) > 0.1 * answered.total()


def test_scenes_without_pixels_leave_absolute_positions_open(raw, tmp_path):
    scene = raw[0] | {"objects": [dict(obj) for obj in raw[0]["objects"]]}
    del scene["objects"][1]["pixel_coords"]
    path = dump(tmp_path / "scenes.json", {"scenes": [scene]})
    assert not any("absolute" in row for row in generated(read_scenes(path)))


# -- balance -------------------------------------------------------------------------------------


def test_families_are_equally_frequent_and_their_answers_near_uniform(rows):
    counts = Counter(row["family"] for row in rows)
    assert len(counts) == 90
    assert max(counts.values()) - min(counts.values()) <= 2
    answers: dict[str, Counter] = {}
    for row in rows:
        answers.setdefault(row["family"], Counter())[row["answer"]] += 1
    for family in FAMILIES:
        counts = answers[family.name].most_common()
        kind, _, attribute = family.function.partition("_")
        domain = len(WORDS[attribute]) if kind == "query" else 2
        if kind != "count":
            fraction = counts[0][1] / sum(n for _, n in counts)
            assert fraction <= 1.1 / domain + 3 / sum(n for _, n in counts), family.name
            assert len(counts) >= min(domain, 6)
        else:
            assert counts[0][1] <= 1.1 * counts[1][1] + 2


# -- text ----------------------------------------------------------------------------------------


def test_texts_are_complete_and_statements_state_an_answer_and_differ_in_it_alone(rows):
    for row in rows:
        true, false = row["statement"], row["false_statement"]
        assert row["question"].endswith("?")
        assert row["question"][0].isupper()
        assert row["answer"] != row["false_answer"]
        assert true != false
        assert not any(mark in row["question"] + true + false for mark in "{}")
        changed = set(true.split()) ^ set(false.split())
        # "is exactly one cube that is", "are exactly two cubes that are": numbers agree.
        assert len(changed) <= 12 if row["type"] == "count" else len(changed) <= 8
        kind = row["type"].partition("_")[0]
        for text, answer in (("statement", "answer"), ("false_statement", "false_answer")):
            words = row[text].split()
            if kind == "query":
                assert words[-1] == row[answer]
            elif kind == "count":
                stated = NUMBERS[int(row[answer])]
                assert stated in words or (stated == "zero" and "no" in words)
            elif row["type"] == "exist":
                assert (row[answer] == "no") == bool({"no", "not"} & set(words))


def test_equal_seeds_give_equal_questions_and_others_other_ones(scenes):
    few = scenes[:8]
    first, again, other = (
        json.dumps(generated(few, seed=seed), sort_keys=True) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


PLAIN = "a an and are behind front in is left no object objects of one right the there thing things"
NAMES = (
    "to two three four five six seven eight small large red blue green gray brown purple cyan "
    "yellow metal rubber cube cubes sphere spheres cylinder cylinders"
)


@pytest.fixture(scope="module")
def few_words(scenes) -> list[dict]:
    words = frozenset(f"{PLAIN} {NAMES}".split())
    return generated(scenes, wording=Wording(vocabulary=words, max_words=20), per_image=6)


def test_statements_of_few_words_keep_to_them_and_state_30_families_of_five_structures(
    few_words, raw
):
    for row in few_words:
        scene = raw[row["image_index"]]
        assert word(naive(row["program"], scene)) == row["answer"]
        for text in (row["statement"], row["false_statement"]):
            assert set(text.split()) <= set(f"{PLAIN} {NAMES}".split()), text
            assert len(text.split()) <= 20
        assert row["statement"] != row["false_statement"]
        # It names each value of its program once, and the answer of a query.
        assert named(row["statement"]) == filtered(row) + answered(row), row["statement"]
    longest = max(len(row["statement"].split()) for row in few_words)
    assert longest > 17
    families = Counter(row["family"] for row in few_words)
    chains = ("zero_hop", "one_hop", "two_hop", "three_hop", "single_and")
    ends = ("exist", "count", *(f"query_{attribute}" for attribute in ATTRIBUTES))
    assert set(families) == {f"{structure}-{end}" for structure in chains for end in ends}
    assert min(families.values()) >= 0.5 * max(families.values())


VALUES = {value for few in WORDS.values() for value in few}
PHRASES = {"left": "left of", "right": "right of", "behind": "behind", "front": "in front of"}


def named(text: str) -> Counter:
    """How often a text names each value and each relation."""
    words = [word.removesuffix("s") for word in text.split()]
    found = Counter({name: text.count(phrase) for name, phrase in PHRASES.items()})
    return +found + Counter(word for word in words if word in VALUES)


def filtered(row: dict) -> Counter:
    """How often a program has each value and each relation."""
    return Counter(value for step in row["program"] for value in step["value_inputs"])


def answered(row: dict) -> Counter:
    """The answer of a query, which its statement adds to the question."""
    return Counter([row["answer"]] if row["type"].startswith("query") else [])


def test_an_attribute_of_one_value_is_not_asked_for(tmp_path):
    raw = content(8, seed=3)
    for scene in raw["scenes"]:
        for obj in scene["objects"]:
            obj["size"] = "large"
    path = dump(tmp_path / "scenes.json", raw)
    rows = generated(read_scenes(path), per_image=90)
    types = Counter(row["type"] for row in rows)
    assert "query_size" not in types
    assert min(types[f"query_{kind}"] for kind in ("color", "material", "shape")) > 8


def test_vocabularies_are_checked(tmp_path, scenes):
    assert "cube" in (read_vocabulary(Path("checkpoints/scenes-clip/vocabulary.txt")) or ())
    assert read_vocabulary(None) is None
    with refused("a vocabulary in .*missing"):
        read_vocabulary(tmp_path / "missing.txt")
    (tmp_path / "words.txt").write_text("red\na cube\n")
    with refused("one word a line .* 'a cube'"):
        read_vocabulary(tmp_path / "words.txt")
    with refused("words of a statement"):
        Generator(vocabulary(scenes), wording=Wording(vocabulary=frozenset(["red", "cube"])))


def test_questions_and_statements_name_what_their_programs_filter(scenes):
    for row in generated(scenes[:50], wording=Wording(synonyms=False)):
        text = row["question"].removeprefix("How large is").replace(",", "").rstrip("?").lower()
        assert named(text) == filtered(row)
        assert named(row["statement"]) == filtered(row) + answered(row)
