import json
import math
import random

import pytest
import torch
from PIL import Image

from tests.benchmarks.models import oracle
from vlmtune.benchmarks.sugar_crepe_pp import SUBSETS, SugarCrepePP


class Dual:
    """Coarse random scores, and random embeddings of captions."""

    def __init__(self, seed):
        self.rng, self.scores, self.vectors = random.Random(seed), {}, {}

    def look(self, name, text):
        return self.scores.setdefault((name, text), float(self.rng.randrange(4)))

    def vector(self, text):
        return self.vectors.setdefault(text, [self.rng.gauss(0, 1) for _ in range(4)])

    def __call__(self, images, texts, pairs=None):
        return torch.tensor([self.look(images[i].path.name, texts[j]) for i, j in pairs.tolist()])

    def embed_images(self, images):
        raise AssertionError("the text-to-text score needs no image")

    def embed_texts(self, texts):
        return torch.tensor([self.vector(text) for text in texts])


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", range(3))
def test_against_the_rule_of_the_published_scripts(tmp_path, convention, seed):
    strict = convention == "strict"
    model, expected, texts = Dual(seed), {}, []
    for i in range(4):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{i}.jpg")
    for subset in SUBSETS:
        rows = []
        for i in range(12):
            captions = [f"{subset} {i} {kind}" for kind in "abc"]
            if i >= 9:  # the false caption repeats a true one, as in two rows of swap_obj
                captions[2] = captions[i % 2]
            keys = ("filename", "caption", "caption2", "negative_caption")
            rows.append({"id": i, **dict(zip(keys, (f"{i % 4}.jpg", *captions), strict=True))})
            if i >= 9 and strict:
                continue
            one, two, false = (model.look(f"{i % 4}.jpg", text) for text in captions)
            expected.setdefault(subset, []).append(one > false and two > false)
            first, second, other = (model.vector(text) for text in captions)
            closer = cosine(first, second) > cosine(first, other)
            both = closer and cosine(second, first) > cosine(second, other)
            texts.append(closer if strict else both)
        (tmp_path / f"{subset}.json").write_text(json.dumps(rows))
    benchmark = SugarCrepePP(str(tmp_path), str(tmp_path), convention=convention)
    metrics = benchmark.run(model).metrics
    every = [win for wins in expected.values() for win in wins]
    assert metrics["accuracy"].value == pytest.approx(sum(every) / len(every))
    assert metrics["accuracy"].n == 5 * (9 if strict else 12)
    assert metrics["accuracy"].chance == pytest.approx(1 / 3)
    assert metrics["identical_candidates"].value == 15
    for subset, wins in expected.items():
        assert metrics[f"accuracy/{subset}"].value == pytest.approx(sum(wins) / len(wins))
    assert metrics["text_to_text_accuracy"].value == pytest.approx(sum(texts) / len(texts))
    assert metrics["text_to_text_accuracy"].chance == pytest.approx(1 / 2 if strict else 1 / 3)


def test_a_joint_model_has_no_text_to_text_accuracy(tmp_path):
    benchmark = SugarCrepePP.fixture(tmp_path)
    metrics = benchmark.run(oracle(benchmark)).metrics
    assert "text_to_text_accuracy" not in metrics
    assert metrics["accuracy"].value == 1.0
