"""SPEC in both directions: which caption fits the image, and which image the caption."""

import random

import pytest

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import beats, by_name, check, drawn, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.spec_files import SUBSETS
from vlmtune.benchmarks.spec_image_to_text import SpecImageToText
from vlmtune.benchmarks.spec_text_to_image import SpecTextToImage
from vlmtune.evaluation.item_rows import item_rows

FILES = {SpecImageToText: "image2text.json", SpecTextToImage: "text2image.json"}


def written(folder, cases_of, kind=SpecTextToImage):
    for subset, cases in cases_of.items():
        rows = []
        for query, keys, label in cases:
            rows.append({"query": query, "keys": keys, "label": label})
            touch(folder / subset, *(name for name in (query, *keys) if name.endswith(".png")))
        write(folder / subset, rows, FILES[kind])
    return str(folder)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("seed", range(3))
def test_against_counting_who_is_best(tmp_path, seed, kind):
    rng, look = random.Random(seed), drawn(seed, values=5)
    to_text = kind is SpecImageToText
    cases_of = {}
    for k, subset in enumerate(SUBSETS):
        size = k % 3 + 2
        images = [f"{i}{subset}.png" for i in range(k + 3)]
        texts = [f"{subset} {i}" for i in range(k + 3)]
        queries, keys = (images, texts[:size]) if to_text else (texts, images[:size])
        cases_of[subset] = [(query, keys, rng.randrange(size)) for query in queries]
    result = kind(written(tmp_path, cases_of, kind)).run(by_name(look))
    means = []
    for subset, cases in cases_of.items():
        won = []
        for query, keys, label in cases:
            others = keys[:label] + keys[label + 1 :]

            def score(key, query=query):
                return look(query, key) if to_text else look(key, query)

            won.append(beats(score, keys[label], others))
        means.append(mean(won))
        check(result, {f"accuracy/{subset}": share(won, 1 / len(cases[0][1]))})
    check(result, {"macro_accuracy": (mean(means), 6)})
    if not to_text:
        # The captions of a subset choose from one set of images.
        assert set(result.clusters) == set(range(6))


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
