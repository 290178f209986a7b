import pytest
import torch

from tests.tiny import Widths
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.types import Pooled


def made(**options):
    adapter = LinearProbe(**options)
    adapter.attach(Widths(embed_dim=6))
    return adapter


def test_parameters_on_vit_b_32():
    adapter = LinearProbe()
    adapter.attach(Widths())
    trained = sum(p.numel() for p in adapter.parameters() if p.requires_grad)
    assert trained == 2 * (512 * 512 + 512) + 2


def test_the_formula():
    adapter = made()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn_like(parameter))
    image, text = torch.randn(3, 6), torch.randn(2, 6)
    got = adapter(Pooled(image), Pooled(text)).values
    for i in range(3):
        for j in range(2):
            v = adapter.image.weight @ image[i] + adapter.image.bias
            t = adapter.text.weight @ text[j] + adapter.text.bias
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
