import pytest
import torch
from torch.nn.functional import normalize

from tests.scored import (
    CUTS,
    assert_shares_add_up,
    naive_contrast,
    random_targets,
    random_values,
    same,
    scored,
)
from vlmtune.objectives import ReadAlignment, read_alignment
from vlmtune.types import Embedded, Scores


def texts(seed, count):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return normalize(rows, dim=1).requires_grad_()


def scores(text, images, scale=7.0):
    image = normalize(torch.ones(images, 4, dtype=text.dtype), dim=1)
    values = scale * image @ text.T
    whole = Embedded(image, text, torch.tensor(scale, dtype=text.dtype))
    return Scores(values, torch.ones_like(values, dtype=torch.bool), whole)


def naive(text, truth, scale):
    # Two texts are captions of one image if an image has both.
    same = (truth[:, :, None] & truth[:, None, :]).any(dim=0)
    paraphrases = same & ~torch.eye(len(text), dtype=torch.bool)
    apart = ~same & truth.any(dim=0)
    return naive_contrast(scale * text @ text.T, paraphrases, apart)


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_double_loop(seed):
    targets, text = random_targets(seed), texts(seed, 9)
    loss = ReadAlignment()(scores(text, 5), targets)
    want = naive(text.detach(), targets.truth, 7.0)
    assert loss.item() == pytest.approx(want, abs=1e-12)
    loss.backward()
    assert text.grad.isfinite().all()


@pytest.mark.parametrize("truth", [torch.ones(1, 3), torch.eye(4)], ids=["one image", "one each"])
def test_captions_of_one_image_alone_or_one_of_each_train_nothing(truth):
    text = texts(1, truth.shape[1])
    loss = ReadAlignment()(scores(text, len(truth)), same(truth > 0))
    loss.backward()
    assert loss == 0
    assert not text.grad.any()


@pytest.mark.parametrize("seed", range(4))
def test_ranks_hold_only_their_own_texts_and_add_up(seed, monkeypatch):
    sizes, contrast = [], read_alignment.mean_contrast

    def noting(x, *rest):
        sizes.append(x.shape)
        return contrast(x, *rest)

    monkeypatch.setattr(read_alignment, "mean_contrast", noting)
    scores = scored(random_values(seed).requires_grad_())
    assert_shares_add_up(ReadAlignment(), scores, random_targets(seed), CUTS)
    assert (sizes[0], sorted(sizes[1:])) == ((9, 9), [(0, 9), (4, 9), (5, 9)])
