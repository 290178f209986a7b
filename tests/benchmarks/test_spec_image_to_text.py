import json
import random

import pytest
from PIL import Image

from tests.benchmarks.models import by_name, drawn
from tests.refusals import refused
from vlmtune.benchmarks.spec_image_to_text import SUBSETS, SpecImageToText


def written(folder, cases_of):
    for subset, cases in cases_of.items():
        place = folder / subset
        place.mkdir()
        for image, _, _ in cases:
            Image.new("RGB", (4, 4)).save(place / image)
        rows = [dict(zip(("query", "keys", "label"), case, strict=True)) for case in cases]
        (place / "image2text.json").write_text(json.dumps(rows))
    return str(folder)


@pytest.mark.parametrize("seed", range(3))
def test_against_counting_who_is_best(tmp_path, seed):
    rng, look = random.Random(seed), drawn(seed, values=5)
    cases_of = {}
    for k, subset in enumerate(SUBSETS):
        size = k % 3 + 2
        texts = [f"{subset} {i}" for i in range(size)]
        cases_of[subset] = [(f"{i}{subset}.png", texts, rng.randrange(size)) for i in range(k + 3)]
    metrics = SpecImageToText(written(tmp_path, cases_of)).run(by_name(look)).metrics
    means = {}
    for subset, cases in cases_of.items():
        won = []
        for image, texts, label in cases:
            scores = [look(image, text) for text in texts]
            best = max(scores)
            won.append(scores[label] == best and scores.count(best) == 1)
        means[subset] = sum(won) / len(won)
        metric = metrics[f"accuracy/{subset}"]
        assert metric.value == pytest.approx(means[subset])
        assert metric.chance == pytest.approx(1 / len(cases[0][1]))
    assert metrics["macro_accuracy"].value == pytest.approx(sum(means.values()) / 6)


def test_a_label_beyond_the_captions_is_one_line(tmp_path):
    path = written(tmp_path, {"count": [("0.png", ["one", "two"], 2)]})
    with refused("pop index out of range"):
        SpecImageToText(path, ["count"]).load()
