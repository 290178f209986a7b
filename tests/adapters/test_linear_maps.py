"""A linear probe maps images and texts, a text map texts alone, a bottleneck in two steps."""

import pytest
import torch

from tests.adapters.families import attached, embedded, fit, near, plain
from tests.tiny import Widths
from vlmtune.adapters import Bottleneck, LinearProbe, TextMap
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import Pooled, Targets


def made(kind=LinearProbe, width=6, **options):
    adapter = kind(**options)
    adapter.attach(Widths(embed_dim=width))
    return adapter


@pytest.mark.parametrize(("kind", "count"), [(LinearProbe, 2 * (512 + 1)), (TextMap, 512)])
def test_parameters_on_vit_b_32(kind, count):
    adapter = kind()
    adapter.attach(Widths())
    trained = sum(p.numel() for p in adapter.parameters() if p.requires_grad)
    assert trained == count * 512 + 2


@pytest.mark.parametrize("kind", [LinearProbe, TextMap])
def test_the_formula(kind):
    adapter = made(kind)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn_like(parameter))
    image, text = torch.randn(3, 6), torch.randn(2, 6)
    got = adapter(Pooled(image), Pooled(text)).values
    for i in range(3):
        for j in range(2):
            v, t = image[i], adapter.text.weight @ text[j]
            if kind is LinearProbe:
                v = adapter.image.weight @ v + adapter.image.bias
                t = t + adapter.text.bias
            want = adapter.log_scale.exp() * (v @ t / (v.norm() * t.norm())) + adapter.bias
            torch.testing.assert_close(got[i, j], want)


@pytest.mark.parametrize("learned", [True, False])
def test_scale_and_offset(learned):
    adapter = made(learn_scale=learned)
    assert adapter.log_scale.requires_grad is learned
    assert adapter.bias.requires_grad is learned
    assert adapter.log_scale.exp().item() == pytest.approx(100)
    given = made(learn_scale=learned, initial_scale=10.0)
    assert given.log_scale.exp().item() == pytest.approx(10)
    assert given.bias.item() == 0


def test_it_learns_binding_that_lies_linearly_in_the_embeddings():
    """Images e1, e2 and texts e3, e4 of disjoint directions: cosines are 0, a linear map aligns."""
    eye = torch.eye(4)
    adapter, image, text = made(TextMap, 4), Pooled(eye[:2]), Pooled(eye[2:])
    assert adapter(image, text).values.abs().max() == 0
    truth = torch.eye(2, dtype=torch.bool)
    targets = Targets(truth, torch.ones_like(truth), truth)
    optimizer = torch.optim.Adam(adapter.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        InfoNCE()(adapter(image, text), targets).backward()
        optimizer.step()
    scores = adapter(image, text).values
    assert scores.argmax(dim=1).tolist() == [0, 1]
    assert scores.argmax(dim=0).tolist() == [0, 1]


def test_the_formula_of_a_bottleneck():
    adapter, model = attached(Bottleneck(image=0.2, text=0.6))
    fit(adapter, model)
    for got, frozen, side, ratio in zip(
        embedded(adapter, model),
        plain(model),
        (adapter.image, adapter.text),
        (0.2, 0.6),
        strict=True,
    ):
        first, second = side[0].weight, side[2].weight
        assert first.shape == (4, 16)
        assert second.any()
        for row, f in zip(got, frozen, strict=True):
            near(row, ratio * second @ (first @ f).clamp_min(0) + (1 - ratio) * f)


def test_a_bottleneck_with_a_ratio_of_0_leaves_a_side_alone():
    adapter, model = attached(Bottleneck())
    fit(adapter, model)
    image, text = embedded(adapter, model)
    assert text.equal(plain(model)[1])
    assert not torch.allclose(image, 0.8 * plain(model)[0], atol=1e-4)
    adapter = Bottleneck()
    adapter.attach(Widths())
    assert sum(p.numel() for p in adapter.parameters() if p.requires_grad) == 2 * 512 * 128
