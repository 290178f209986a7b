import random

import pytest

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import beats, by_name, check, drawn, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.spec_image_to_text import SUBSETS
from vlmtune.benchmarks.spec_text_to_image import SpecTextToImage
from vlmtune.evaluation.item_rows import item_rows


def written(folder, cases_of):
    for subset, cases in cases_of.items():
        rows = [dict(zip(("query", "keys", "label"), case, strict=True)) for case in cases]
        touch(folder / subset, *(image for _, images, _ in cases for image in images))
        write(folder / subset, rows, "text2image.json")
    return str(folder)


@pytest.mark.parametrize("seed", range(3))
def test_against_counting_who_is_best(tmp_path, seed):
    rng, look = random.Random(seed), drawn(seed, values=5)
    cases_of = {}
    for k, subset in enumerate(SUBSETS):
        size = k % 3 + 2
        images = [f"{i}{subset}.png" for i in range(size)]
        cases_of[subset] = [(f"{subset} {i}", images, rng.randrange(size)) for i in range(k + 3)]
    result = SpecTextToImage(written(tmp_path, cases_of)).run(by_name(look))
    means = []
    for subset, cases in cases_of.items():
        won = []
        for text, images, label in cases:
            others = images[:label] + images[label + 1 :]
            won.append(beats(lambda image, text=text: look(image, text), images[label], others))
        means.append(mean(won))
        check(result, {f"accuracy/{subset}": share(won, 1 / len(cases[0][1]))})
    check(result, {"macro_accuracy": (mean(means), 6)})
    assert set(result.clusters) == set(range(6))  # the captions of a subset choose from one set


def test_items_a_tie_and_their_rows(tmp_path):
    cases = [("one dog", ["a.png", "b.png", "c.png"], 2), ("two dogs", ["a.png", "b.png"], 0)]
    benchmark = SpecTextToImage(written(tmp_path, {"count": cases}), ["count"])
    names = [[image.path.name for image in item.images] for item in benchmark.items.compared]
    assert names == [["c.png", "a.png", "b.png"], ["a.png", "b.png"]]
    looks = {"c.png": 2.0, "a.png": 1.0, "b.png": 1.0}
    seen = {}

    def score(images, texts, pairs):
        seen["scores"] = by_name(lambda image, text: looks[image])(images, texts, pairs)
        return seen["scores"]

    result = benchmark.run(score)
    assert result.outcomes == (1.0, 0.0)  # an argmax would take a.png, the first of the best
    assert result.metrics["accuracy"].chance == pytest.approx((1 / 3 + 1 / 2) / 2)
    first, second = item_rows(benchmark, result, seen["scores"])
    assert (first.true, first.scores) == (((True,), (False,), (False,)), ((2.0,), (1.0,), (1.0,)))
    assert (second.captions, second.true) == (("two dogs",), ((True,), (False,)))
    shown = {example.query: example for example in result.examples}
    assert [image.path.name for image in shown["one dog"].images] == ["c.png", "a.png", "b.png"]
    assert shown["one dog"].true == (True, False, False)


@pytest.mark.parametrize(("keys", "label"), [(["a.png", "b.png"], 2), (["a.png"], 0)])
def test_a_label_without_a_key_and_a_sole_key_are_errors(tmp_path, keys, label):
    path = written(tmp_path, {"count": [("one dog", keys, label)]})
    with refused("text2image.json"):
        SpecTextToImage(path, ["count"]).load()
