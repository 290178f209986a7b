"""FT-Late against torch's encoder layers, one image and one caption at a time."""

import pytest
import torch

from tests.adapters.fused import LENGTHS, features, moved, same_values_and_gradients
from tests.tiny import Widths
from vlmtune.adapters.ft_late import FTLate
from vlmtune.errors import UserError


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_values_and_gradients_are_those_of_torch(layers, norm_first):
    options = {"layers": layers, "norm_first": norm_first}
    adapter = moved(FTLate(heads=2, hidden=2, dropout=0.0, **options))
    image, text = features()
    got = adapter(image, text).values
    rows = []
    for patches in image.values:
        encoded = adapter.image((patches @ adapter.project.weight.T + adapter.project.bias)[None])
        row = []
        for words, length in zip(text.values, LENGTHS, strict=True):
            other = adapter.text(words[None, :length])[0, 1 : length - 1].mean(dim=0)
            mean = encoded[0].mean(dim=0)
            cosine = mean @ other / (mean.norm() * other.norm())
            row.append(adapter.log_scale.exp() * cosine + adapter.bias)
        rows.append(torch.stack(row))
    same_values_and_gradients(got, torch.stack(rows), list(adapter.parameters()))


def test_parameters_are_as_many_as_in_table_5_and_heads_divide_the_width():
    adapter = FTLate()
    adapter.attach(Widths())
    count = sum(p.numel() for p in adapter.parameters())
    assert count == 13_005_314
    assert f"{count / 1e6:.0f}" == "13"
    assert all(p.requires_grad for p in adapter.parameters())
    assert adapter.log_scale.exp().item() == pytest.approx(10)
    with pytest.raises(UserError, match="divide the token width 512, got 7"):
        FTLate(heads=7).attach(Widths())
