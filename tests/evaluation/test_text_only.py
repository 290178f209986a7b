from pathlib import Path

import pytest
import torch

from vlmtune.benchmarks.base import PairScorer
from vlmtune.evaluation.text_only import ImageAveraged, TextOnlyScore
from vlmtune.language.ngram import NGram
from vlmtune.types import ImageRef

TRAINING = [
    "a man rides a horse on the beach",
    "a dog sits on a couch",
    "a woman holds an umbrella in the rain",
    "two cats sleep on a bed",
]
IMAGES = [ImageRef(Path(f"{i}.png")) for i in range(3)]


def test_the_score_is_the_likelihood_of_the_text():
    model = NGram(2).fit(TRAINING)
    texts = ["a dog", "a horse on a very long couch"]
    for per_token in (True, False):
        whole = TextOnlyScore(model, per_token)(IMAGES, texts)
        assert whole.shape == (3, 2)
        for j, text in enumerate(texts):
            assert whole[:, j].tolist() == [model.log_probability(text, per_token)] * 3
        pairs = torch.tensor([[2, 1], [0, 0], [1, 1]])
        got = TextOnlyScore(model, per_token)(IMAGES, texts, pairs)
        assert got.equal(whole[pairs[:, 0], pairs[:, 1]])
    total, mean = (TextOnlyScore(model, one)(IMAGES, texts)[0] for one in (False, True))
    assert total[0] > total[1]
    assert (total / mean).round().tolist() == [3, 8]


def matrix(values):
    """A scorer that looks the scores up, and counts the images it is asked for."""
    asked = []

    def score(images, texts, pairs=None):
        assert pairs is None
        asked.append(len(images))
        rows = [int(image.path.stem) for image in images]
        return values[rows][:, [int(text) for text in texts]]

    return score, asked


def test_the_image_is_averaged_out_and_counts_once():
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    score, _ = matrix(values)
    averaged = ImageAveraged(score)
    texts = ["0", "1", "2", "3"]
    whole = averaged(IMAGES, texts)
    assert whole.shape == (3, 4)
    assert torch.allclose(whole, values.mean(dim=0).expand(3, -1))
    pairs = torch.tensor([[2, 3], [0, 0]])
    assert averaged(IMAGES, texts, pairs).equal(whole[pairs[:, 0], pairs[:, 1]])
    assert isinstance(averaged, PairScorer)
    score, asked = matrix(torch.tensor([[0.0], [3.0], [9.0]]))
    assert ImageAveraged(score)([IMAGES[0], IMAGES[1], IMAGES[0]], ["0"]).tolist() == [[1.5]] * 3
    assert asked == [2]


def test_a_sample_of_images_depends_on_the_seed_alone():
    images = [ImageRef(Path(f"{i}.png")) for i in range(50)]
    score, asked = matrix(torch.arange(50.0)[:, None].square())
    found = {ImageAveraged(score, 5, seed)(images, ["0"])[0].item() for seed in (0, 0, 0, 1, 2)}
    assert len(found) == 3
    assert set(asked) == {5}
    (whole,) = {ImageAveraged(score, None)(images, ["0"])[0].item()}
    assert whole == pytest.approx(sum(i * i for i in range(50)) / 50)
