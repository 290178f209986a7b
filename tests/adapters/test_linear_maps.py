"""A linear probe maps images and texts, a text map texts alone, a bottleneck in two steps."""

import pytest
import torch

from tests.adapters.families import attached, embedded, fit, near, plain
from tests.tiny import Widths
from vlmtune.adapters import Bottleneck, LinearProbe, TextMap
from vlmtune.types import Pooled


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
