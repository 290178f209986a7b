import pytest
import torch
from torch.nn.functional import normalize

from tests.scored import CUTS, assert_shares_add_up, random_targets, random_values, same, scored
from vlmtune.objectives.cyclip import CyClip
from vlmtune.objectives.eqsim import EqSim
from vlmtune.types import Embedded, Scores

# Four pairs in the plane, and what the formula gives for them.
IMAGES = torch.tensor([[1, 0], [0.6, 0.8], [0, 1], [-0.6, 0.8]], dtype=torch.float64)
TEXTS = torch.tensor([[0.8, 0.6], [0, 1], [1, 0], [0.6, -0.8]], dtype=torch.float64)
CROSS, IN = 1.4040, 1.4232
PAIRS = same(torch.eye(4) > 0)


def scores(image, text, scale=10.0):
    scale = torch.tensor(scale, dtype=image.dtype, requires_grad=True)
    values = scale * image @ text.T
    return Scores(values, torch.ones_like(values, dtype=torch.bool), Embedded(image, text, scale))


def dot(a, b):
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def naive(image, text, truth):
    """Cross-modal and in-modal term."""
    pairs = truth.nonzero().tolist()
    captions = truth.sum(dim=1).tolist()
    cross = inside = 0.0
    for i, j in pairs:
        for k, m in pairs:
            share = 1 / (captions[i] * captions[k])
            cross += share * (dot(image[i], text[m]) - dot(image[k], text[j])) ** 2
            inside += share * (dot(image[i], image[k]) - dot(text[j], text[m])) ** 2
    images = sum(count > 0 for count in captions)
    return cross / images, inside / images


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_known_numbers_at_any_scale_and_order(scale, order):
    targets = same(torch.eye(4)[:, order] > 0)
    given = scores(IMAGES, TEXTS[order], scale)
    cross = CyClip(in_modal=0.0, cross_modal=1.0)(given, targets)
    inside = CyClip(in_modal=1.0, cross_modal=0.0)(given, targets)
    assert cross.item() == pytest.approx(CROSS, abs=1e-12)
    assert inside.item() == pytest.approx(IN, abs=1e-12)
    assert CyClip()(given, targets).item() == pytest.approx((CROSS + IN) / 4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(5, 9), (6, 3)])
def test_several_captions_equal_the_double_loop(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    both = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in shape)
    image, text = (normalize(x, dim=1) for x in both)
    targets = random_targets(seed, shape)
    cross, inside = naive(image, text, targets.truth)
    got = CyClip(in_modal=0.3, cross_modal=0.7)(scores(image, text), targets)
    assert got.item() == pytest.approx(0.7 * cross + 0.3 * inside, abs=1e-12)


def test_the_cross_modal_term_is_v1_of_eqsim_on_all_pairs():
    v1 = EqSim(v1="all", v2="none", normalise="none", alpha1=0.0)
    loss = v1(Scores.full(IMAGES @ TEXTS.T), PAIRS)
    assert 3 * loss.item() == pytest.approx(CROSS, abs=1e-12)  # over N - 1 pairs an image


def test_a_caption_twice_counts_once():
    order = [0, 1, 2, 3, 0]
    got = CyClip()(scores(IMAGES, TEXTS[order]), same(PAIRS.truth[:, order]))
    torch.testing.assert_close(got, CyClip()(scores(IMAGES, TEXTS), PAIRS))


def test_both_modalities_get_a_gradient_and_the_scale_none():
    image, text = IMAGES.clone().requires_grad_(), TEXTS.clone().requires_grad_()
    given = scores(image, text)
    CyClip()(given, PAIRS).backward()
    assert given.embedded.scale.grad is None
    for side in (image, text):
        assert side.grad.isfinite().all()
        assert side.grad.any()


@pytest.mark.parametrize("seed", range(4))
def test_ranks_hold_only_their_own_pairs_and_add_up(seed, monkeypatch):
    scores, targets = scored(random_values(seed).requires_grad_()), random_targets(seed)
    sizes, square = [], torch.Tensor.square
    monkeypatch.setattr(torch.Tensor, "square", lambda x: sizes.append(len(x)) or square(x))
    assert_shares_add_up(CyClip(in_modal=0.3, cross_modal=0.7), scores, targets, CUTS)
    pairs = [int(targets.truth[cut].sum()) for cut, _ in CUTS]
    assert sorted(sizes[2:]) == sorted(pairs * 2)  # after those of one process
    assert sizes[:2] == [sum(pairs)] * 2
