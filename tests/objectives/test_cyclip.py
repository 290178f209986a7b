import pytest
import torch
from torch.nn.functional import normalize

from tests.scored import CUTS, assert_shares_add_up, random_targets, random_values, same, scored
from vlmtune.objectives.cyclip import CyClip
from vlmtune.types import Embedded, Scores


def scores(image, text, scale=10.0):
    scale = torch.tensor(scale, dtype=image.dtype, requires_grad=True)
    values = scale * image @ text.T
    return Scores(values, torch.ones_like(values, dtype=torch.bool), Embedded(image, text, scale))


def naive(image, text, truth):
    """Cross-modal and in-modal term."""
    pairs = truth.nonzero().tolist()
    captions = truth.sum(dim=1).tolist()
    cross = inside = 0.0
    for i, j in pairs:
        for k, m in pairs:
            share = 1 / (captions[i] * captions[k])
            cross += share * (float(image[i] @ text[m]) - float(image[k] @ text[j])) ** 2
            inside += share * (float(image[i] @ image[k]) - float(text[j] @ text[m])) ** 2
    images = sum(count > 0 for count in captions)
    return cross / images, inside / images


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(5, 9), (6, 3)])
def test_several_captions_equal_the_double_loop(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    both = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in shape)
    image, text = (normalize(x, dim=1) for x in both)
    targets = random_targets(seed, shape)
    cross, inside = naive(image, text, targets.truth)
    for scale in (1.0, 100.0):
        got = CyClip(in_modal=0.3, cross_modal=0.7)(scores(image, text, scale), targets)
        assert got.item() == pytest.approx(0.7 * cross + 0.3 * inside, abs=1e-12)
    default = CyClip()(scores(image, text), targets)
    assert default.item() == pytest.approx((cross + inside) / 4, abs=1e-12)


def test_both_modalities_get_a_gradient_and_the_scale_none():
    generator = torch.Generator().manual_seed(0)
    both = (torch.randn(4, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    image, text = (normalize(x, dim=1).requires_grad_() for x in both)
    given = scores(image, text)
    CyClip()(given, same(torch.eye(4) > 0)).backward()
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
