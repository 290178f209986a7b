import torch

from tests.adapters.families import attached, embedded, fit, near, plain
from tests.tiny import Widths
from vlmtune.adapters.bottleneck import Bottleneck


def test_the_formula():
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


def test_a_ratio_of_0_leaves_a_side_alone():
    adapter, model = attached(Bottleneck())
    fit(adapter, model)
    image, text = embedded(adapter, model)
    assert text.equal(plain(model)[1])
    assert not torch.allclose(image, 0.8 * plain(model)[0], atol=1e-4)


def test_parameters_on_vit_b_32():
    adapter = Bottleneck()
    adapter.attach(Widths())
    assert sum(p.numel() for p in adapter.parameters() if p.requires_grad) == 2 * 512 * 128
