import random

import pytest
import torch

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import check, cosine, joined, oracle, share
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


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", range(3))
def test_against_the_rule_of_the_published_scripts(tmp_path, convention, seed):
    strict = convention == "strict"
    model, expected, texts = Dual(seed), {}, []
    touch(tmp_path, *(f"{i}.jpg" for i in range(4)))
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
        write(tmp_path, rows, f"{subset}.json")
    benchmark = SugarCrepePP(str(tmp_path), str(tmp_path), convention=convention)
    numbers = {f"accuracy/{subset}": share(wins) for subset, wins in expected.items()}
    # A false caption that repeats a true one always ties, and a tie is lost: 3 rows of 12.
    numbers["accuracy"] = share(joined(expected.values()), 1 / 3 if strict else 1 / 4)
    numbers["text_to_text_accuracy"] = share(texts, 1 / 2 if strict else 1 / 3)
    check(benchmark.run(model), numbers | {"identical_candidates": (15,)})


def test_a_joint_model_has_no_text_to_text_accuracy(tmp_path):
    benchmark = SugarCrepePP.fixture(tmp_path)
    metrics = benchmark.run(oracle(benchmark)).metrics
    assert "text_to_text_accuracy" not in metrics
    assert metrics["accuracy"].value == 1.0
