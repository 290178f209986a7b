"""Rows of floats as int8 and a scale, against the bound on their error."""

import torch

from vlmtune.search.quantise import quantise, restore


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
