"""95 % intervals of items that share images or captions, where these are few."""

import numpy
import pytest
import torch

from vlmtune.metrics import cluster_robust_mean, paired_difference

TRIALS, ITEMS = 500, 10  # simulations, and items of a cluster
QUANTILES = {0.5: 0.0, 0.8: 0.841621, 0.9: 1.281552}  # of the normal distribution
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("count", [5, 10, 80])
@pytest.mark.parametrize("p", [0.5, 0.9])
@pytest.mark.parametrize("rho", [0.3, 0.8])
def test_a_mean(count, p, rho):
    rng = numpy.random.default_rng(count)
    factor = (1 - rho) / rho  # of the beta distribution of clusters with that correlation
    rates = rng.beta(p * factor, (1 - p) * factor, (TRIALS, count))
    draws = rng.random((TRIALS, count, ITEMS)) < rates[..., None]
    clusters = torch.arange(count).repeat_interleave(ITEMS)
    metrics = [cluster_robust_mean(torch.tensor(x.ravel()), clusters) for x in draws.astype(float)]
    covered = sum(one.low <= p <= one.high for one in metrics)
    assert covered / TRIALS >= 0.93


@pytest.mark.parametrize("count", [5, 10, 80])
@pytest.mark.parametrize(("new", "old"), [(0.5, 0.5), (0.9, 0.9), (0.9, 0.8)])
def test_a_paired_difference(count, new, old):
    """Hard clusters are hard for both models, and some for one of them alone."""
    rng, rho = numpy.random.default_rng(count), 0.8

    def outcomes(rate, shared):
        own = rng.standard_normal((TRIALS, count, 1))
        noise = rng.standard_normal((TRIALS, count, ITEMS))
        ease = (rho / 2) ** 0.5 * (shared + own) + (1 - rho) ** 0.5 * noise
        return (ease < QUANTILES[rate]).reshape(TRIALS, -1).astype(float)

    shared = rng.standard_normal((TRIALS, count, 1))
    pairs = zip(outcomes(new, shared), outcomes(old, shared), strict=True)
    clusters = torch.arange(count).repeat_interleave(ITEMS)
    tested = [paired_difference(torch.tensor(x), torch.tensor(y), clusters) for x, y in pairs]
    covered = [one.low <= new - old + 1e-9 and new - old - 1e-9 <= one.high for one in tested]
    assert sum(covered) / TRIALS >= 0.93
    if new == old:
        assert sum(one.p < 0.05 for one in tested) / TRIALS <= 0.07


@pytest.mark.parametrize("captions", [5, 10, 20])
def test_few_captions_of_many_images(captions):
    rng = numpy.random.default_rng(captions)
    caption = rng.standard_normal((TRIALS, captions))
    image = rng.standard_normal((TRIALS, 50))
    drawn = torch.tensor(rng.integers(captions, size=200))
    ways = torch.stack([torch.arange(200) % 50, drawn], dim=1)
    ease = caption[:, ways[:, 1]] + image[:, ways[:, 0]] + rng.standard_normal((TRIALS, 200))
    metrics = [cluster_robust_mean(torch.tensor(x), ways) for x in (ease > 0).astype(float)]
    assert sum(one.low <= 0.5 <= one.high for one in metrics) / TRIALS >= 0.93
