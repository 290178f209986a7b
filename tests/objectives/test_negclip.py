"""NegCLIP needs no objective of its own: it is InfoNCE on groups that hold its negatives.

NegCLIP (Yuksekgonul et al. 2023, section 4) takes N images with their captions, some of them mined
because they are alike, and a negative caption for each of them. Images contrast with all 2N
captions, captions that have an image with the N images. A caption of no image is a column without
a true entry here, a mined image a row with its own caption.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from tests.scored import same
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import Scores, Targets


def negclip(image, text, negative, scale):
    labels = torch.arange(len(image))
    to_text = cross_entropy(scale * image @ torch.cat([text, negative]).T, labels)
    to_image = cross_entropy(scale * text @ image.T, labels)
    return (to_text + to_image) / 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("negatives", [0, 1, 3])
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


def test_the_negative_captions_matter():
    values, truth = torch.zeros(2, 4), torch.eye(2, 4) > 0
    plain = InfoNCE()(Scores.full(values[:, :2]), same(truth[:, :2]))
    assert InfoNCE()(Scores.full(values), same(truth)) > plain
