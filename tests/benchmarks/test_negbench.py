from pathlib import Path

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_name, check, drawn, joined, oracle, share
from tests.refusals import refused
from vlmtune.benchmarks.files import read_csv, write_csv
from vlmtune.benchmarks.negbench import NegBench
from vlmtune.benchmarks.negbench_retrieval import NegBenchRetrieval

TEMPLATES = ("positive", "negative", "hybrid")
WIDTH = 4


def write(folder: Path, count: int, answers=None, column="image_path") -> str:
    """A csv of so many items; the true caption is the first unless `answers` says otherwise."""
    header = [column, *(f"caption_{i}" for i in range(WIDTH))]
    header += ["correct_answer", "correct_answer_template"]
    rows = []
    for number in range(count):
        name = f"{number % 20:012d}.jpg"
        touch(folder, name)
        captions = [f"caption {number} {i}" for i in range(WIDTH)]
        answer = answers[number] if answers else 0
        rows.append([f"C:\\coco\\{name}", *captions, answer, TEMPLATES[number % 3]])
    return write_csv(folder / "mcq.csv", header, rows)


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_against_the_rule_of_the_released_script(tmp_path, convention):
    path = write(tmp_path, 90)
    look = drawn(0, values=6)
    made = NegBench(path, str(tmp_path), convention=convention)
    result = made.run(by_name(look))
    right = {template: [] for template in TEMPLATES}
    for row in read_csv(path, (), ""):
        name = row["image_path"].rpartition("\\")[2]
        scores = [look(name, row[f"caption_{i}"]) for i in range(WIDTH)]
        # argmax takes the first of the best.
        won = scores.index(max(scores)) == int(row["correct_answer"])
        if convention == "strict":
            won = won and scores.count(max(scores)) == 1
        right[row["correct_answer_template"]].append(won)
    check(result, {f"accuracy/{name}": share(wins, 0.25) for name, wins in right.items()})
    check(result, {"accuracy": share(joined(right.values()), 0.25)})


def test_the_true_caption_may_stand_anywhere_and_the_path_in_either_column(tmp_path):
    answers = [number % WIDTH for number in range(12)]
    made = NegBench(write(tmp_path, 12, answers, column="filepath"), str(tmp_path))
    for number, item in enumerate(made.read()):
        assert item.candidates[0] == f"caption {number} {answers[number]}"
        assert len(set(item.candidates)) == WIDTH
        assert item.image.path == tmp_path / f"{number:012d}.jpg"
    assert made.run(oracle(made)).metrics["accuracy"].value == 1.0


def test_a_csv_without_images_or_with_a_caption_too_few_is_one_line(tmp_path):
    for change in ({"column": "video"}, {"answers": [4, 0, 0]}, {"answers": [0, -1, 0]}):
        with refused("expected an image, captions and a true one"):
            NegBench(write(tmp_path, 3, **change), str(tmp_path)).load()


def test_reference_needs_true_captions_that_are_the_first(tmp_path):
    path = write(tmp_path, 3, [0, 1, 0])
    with refused('true captions that are the first.*got .1. at 1/correct_answer: choose "strict"'):
        NegBench(path, str(tmp_path), convention="reference").load()


def test_retrieval_reads_the_captions_of_a_list_literal(tmp_path):
    made = NegBenchRetrieval.fixture(tmp_path)
    first, second, third = made.read()
    assert first.captions == ("a dog runs. There is no cat.", "a dog on grass, with no ball")
    assert second.captions[0] == "There is no dog. a cat's bed"
    assert third.image.path == tmp_path / f"{2:012d}.jpg"
    rows = Path(made.path).read_text().splitlines()
    rows.append(f'"/elsewhere/{2:012d}.jpg",2,"[\'no bus\']"')
    Path(made.path).write_text("\n".join(rows))
    again = NegBenchRetrieval(made.path, made.images)
    assert again.read()[2].captions == ("a red car without a driver", "no bus")
    Path(made.path).write_text("filepath,captions\na.jpg,no list\n")
    with refused("expected an image and a list of captions"):
        NegBenchRetrieval(made.path, made.images).load()
