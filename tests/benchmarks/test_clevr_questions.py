import random
from collections import Counter, defaultdict
from functools import partial

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import beats, by_name, check, drawn, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.clevr_questions import ANSWERS, YES_OR_NO, ClevrQuestions
from vlmtune.benchmarks.files import write_json


def row(image, kind, question, answer, key="function"):
    program = [{key: "scene", "inputs": []}, {key: kind, "inputs": [0]}]
    name = f"{image}.png"
    return {"image_filename": name, "question": question, "answer": answer, "program": program}


def write(folder, rows, **options):
    touch(folder, *(f"{image}.png" for image in range(6)))
    path = write_json(folder / "CLEVR_val_questions.json", {"info": {}, "questions": rows})
    return ClevrQuestions(str(path), str(folder), **options)


def mode_of_types(rows):
    """The mean credit of the most frequent answer of each type on the other half of the images."""
    counts = defaultdict(Counter)
    for i, kind, answer in rows:
        counts[i % 2, kind][answer] += 1
    credits = []
    for i, kind, answer in rows:
        seen = counts[1 - i % 2, kind]
        most = max(seen[other] for other in ANSWERS[kind])
        modes = [other for other in ANSWERS[kind] if seen[other] == most]
        credits.append((answer in modes) / len(modes))
    return mean(credits)


@pytest.mark.parametrize("types", [YES_OR_NO, tuple(ANSWERS)])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(tmp_path, types, seed):
    """Questions of all types, half of them in the form of CLEVR's generator."""
    rng, look = random.Random(seed), drawn(seed, values=4)
    rows, kinds = [], [rng.choice(list(ANSWERS)) for _ in range(120)]
    for i, kind in enumerate(kinds):
        answer, key = rng.choice(ANSWERS[kind][:3]), rng.choice(["function", "type"])
        rows.append(row(i % 6, kind, f"What of {i}?", answer, key))
    result = write(tmp_path, rows, types=types).run(by_name(look))
    wins, chances, known = defaultdict(list), [], []
    for i, (kind, one) in enumerate(zip(kinds, rows, strict=True)):
        if kind not in types:
            continue
        prompts = {answer: f"Question: What of {i}? Answer: {answer}" for answer in ANSWERS[kind]}
        true = prompts.pop(one["answer"])
        looks = partial(look, one["image_filename"])
        wins[kind].append(beats(looks, true, prompts.values()))
        chances.append(1 / len(ANSWERS[kind]))
        known.append((result.clusters[len(known)], kind, one["answer"]))
    every = [win for own in wins.values() for win in own]
    expected = {"accuracy": share(every, mean(chances))}
    for kind, own in wins.items():
        expected[f"accuracy/{kind}"] = share(own, 1 / len(ANSWERS[kind]))
    expected["type_mode_accuracy"] = (mode_of_types(known), len(every))
    check(result, expected)
    assert result.metrics["n_gram_accuracy"].n == len(every)


def test_the_prompt_is_the_users(tmp_path):
    rows = [row(0, "exist", "Are there any cubes?", "no")]
    made = write(tmp_path, rows, prompt="{question} {answer}.")
    assert made.items.texts == ("Are there any cubes? no.", "Are there any cubes? yes.")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"answer": "perhaps"}, r"the answer 'perhaps' to 'exist' in questions\[1\]"),
        ({"program": [{"function": "dance"}]}, "the answer 'yes' to 'dance'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, change, fault):
    rows = [row(i, "exist", "Any?", "yes") for i in range(2)]
    rows[1] |= change
    with refused(fault):
        write(tmp_path, rows).load()
