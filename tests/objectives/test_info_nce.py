"""InfoNCE, and NegCLIP, which is InfoNCE on groups that hold its negatives.

NegCLIP (Yuksekgonul et al. 2023, section 4) takes N images with their captions, some of them mined
because they are alike, and a negative caption for each of them. Images contrast with all 2N
captions, captions that have an image with the N images. A caption of no image is a column without
a true entry here, a mined image a row with its own caption.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from tests.scored import naive_contrast, random_computed, random_targets, random_values
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import Scores, Targets


def loss(values, truth, computed=None):
    computed = torch.ones_like(truth) if computed is None else computed
    return InfoNCE()(Scores(values, computed), Targets(truth, torch.ones_like(truth), truth))


def naive(values, truth, computed):
    true, false = truth & computed, ~truth & computed
    return (naive_contrast(values, true, false) + naive_contrast(values.T, true.T, false.T)) / 2


def test_a_matrix_alone_gets_advice():
    matrix, diagonal = torch.eye(3), Targets.diagonal(3)
    with pytest.raises(TypeError, match=r"expected Scores, got Tensor: use Scores.full\(matrix\)"):
        InfoNCE()(matrix, diagonal)
    with pytest.raises(TypeError, match=r"Targets, got Tensor: use Targets.diagonal\(n\), or"):
        InfoNCE()(Scores.full(matrix), torch.arange(3))
    expected = cross_entropy(matrix, torch.arange(3))
    torch.testing.assert_close(InfoNCE()(Scores.full(matrix), diagonal), expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_several_true_captions_equal_the_double_loop(seed, shape):
    values, computed = random_values(seed, shape), random_computed(seed, shape)
    truth = random_targets(seed, shape).truth
    want = naive(values, truth, computed)
    assert loss(values, truth, computed).item() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_without_negatives_costs_nothing(dtype):
    values = torch.tensor([[3.0, -2.0]], dtype=dtype, requires_grad=True)
    total = loss(values, torch.tensor([[True, True]]))
    total.backward()
    assert total == 0
    assert values.grad.tolist() == [[0.0, 0.0]]


def negclip(image, text, negative, scale):
    labels = torch.arange(len(image))
    to_text = cross_entropy(scale * image @ torch.cat([text, negative]).T, labels)
    to_image = cross_entropy(scale * text @ image.T, labels)
    return (to_text + to_image) / 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("negatives", [0, 1, 3])  # with none it is the loss of CLIP
def test_info_nce_on_groups_with_negative_captions_is_negclip(seed, negatives):
    n, generator = 5, torch.Generator().manual_seed(seed)

    def unit(rows):
        rows = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
        return normalize(rows, dim=1).requires_grad_()

    image, text, negative = unit(n), unit(n), unit(n * negatives)
    want = negclip(image, text, negative, 14.0)
    truth = torch.zeros(n, n + n * negatives, dtype=torch.bool)
    truth[range(n), range(n)] = True
    own = truth.clone()
    for i in range(n):  # each image's negatives stand side by side
        own[i, n + i * negatives : n + (i + 1) * negatives] = True
    order = torch.randperm(truth.shape[1], generator=generator)
    values = (14.0 * image @ torch.cat([text, negative]).T)[:, order]
    got = InfoNCE()(Scores.full(values), Targets(truth[:, order], own[:, order], own[:, order]))
    torch.testing.assert_close(got, want)
    leaves = (image, text, negative) if negatives else (image, text)
    gradients = (torch.autograd.grad(loss, leaves) for loss in (got, want))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
