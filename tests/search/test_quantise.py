"""Rows of floats as int8 and a scale, against loops and the bound on their error."""

import pytest
import torch

from vlmtune.search.quantise import quantise, restore


def test_known_rows_and_the_scale_of_one():
    values = torch.tensor([[127.0, -63.4, 0.0], [0.0, 0.0, 0.0], [-0.254, 0.1, 0.002]])
    numbers, scales = quantise(values)
    assert numbers.dtype == torch.int8
    assert numbers.tolist() == [[127, -63, 0], [0, 0, 0], [-127, 50, 1]]
    assert scales.tolist() == pytest.approx([1.0, 0.0, 0.002])
    wanted = torch.tensor([[127.0, -63.0, 0.0], [0.0, 0.0, 0.0], [-0.254, 0.1, 0.002]])
    torch.testing.assert_close(restore(numbers, scales), wanted)
    values = torch.tensor([[1000.0, 1.0], [0.01, 0.02]])
    numbers, scales = quantise(values)
    torch.testing.assert_close(restore(numbers, scales)[1], values[1], rtol=0.01, atol=0)


def test_the_error_of_random_tokens_is_bounded():
    generator = torch.Generator().manual_seed(0)
    sizes = 10 ** (6 * torch.rand(500, 1, generator=generator) - 3)
    values = sizes * torch.randn(500, 64, generator=generator)
    numbers, scales = quantise(values)
    error = (restore(numbers, scales).double() - values.double()).abs()
    largest = values.double().abs().amax(dim=1, keepdim=True)
    assert bool((error <= largest / 254 * (1 + 1e-5)).all())
    # Rounding errors are uniform: their root mean square is a step / sqrt(12), largest / 440.
    ratio = error.square().mean(dim=1).sqrt() / (largest[:, 0] / 127 / 12**0.5)
    assert 0.95 < float(ratio.mean()) < 1.05
