from fractions import Fraction

import pytest
import torch

from vlmtune.metrics.cluster_robust import macro_mean
from vlmtune.metrics.item_groups import ItemGroups, group_means


def random_groups(seed, n=40, groups=6):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(4, (n,), generator=generator).double() / 3
    members = torch.randint(-1, groups, (n,), generator=generator)
    weights = torch.rand(groups, generator=generator, dtype=torch.float64) + 0.1
    return values, torch.where(members == 2, 3, members), weights  # one group has no items


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_over_groups_against_fractions(seed, weighted):
    values, members, weights = random_groups(seed)
    groups = ItemGroups(members, weights if weighted else None)
    total = scale = Fraction(0)
    for group in sorted({*members.tolist()} - {-1}):
        fractions = [Fraction(round(3 * v), 3) for v in values[members == group].tolist()]
        weight = Fraction(float(weights[group])) if weighted else Fraction(1)
        total, scale = total + weight * sum(fractions) / len(fractions), scale + weight
    clusters = torch.arange(len(values))
    metric = macro_mean(values, members, clusters, weights=groups.present_weights())
    assert metric.value == pytest.approx(float(total / scale), abs=1e-15)
    item_weights = groups.item_weights()
    assert float((item_weights * values).sum()) == pytest.approx(float(total / scale), abs=1e-15)
    assert float(item_weights.sum()) == pytest.approx(1, abs=1e-15)
    assert (item_weights[members < 0] == 0).all()


def test_groups_are_identified_by_their_numbers():
    means, member, sizes = group_means(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([7, 3, 7]))
    assert (means.tolist(), member.tolist(), sizes.tolist()) == ([0.0, 0.75], [1, 0, 1], [1, 2])
