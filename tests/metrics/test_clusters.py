import random

import torch

from vlmtune.metrics.clusters import connected


def naive(rows):
    """Labels of items by repeated merging of all that share a member."""
    labels = list(range(len(rows)))
    changed = True
    while changed:
        changed = False
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                if set(one) & set(other) and labels[i] != labels[j]:
                    labels[i] = labels[j] = min(labels[i], labels[j])
                    changed = True
    number = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return [number[label] for label in labels]


def test_against_repeated_merging():
    rng = random.Random(0)
    for n, members in ((1, 3), (12, 8), (20, 30), (20, 60)):
        for _ in range(5):
            rows = [[rng.randrange(members), rng.randrange(members)] for _ in range(n)]
            assert connected(torch.tensor(rows)).tolist() == naive(rows)


def test_a_long_chain_is_one_and_strangers_are_many():
    chain = torch.stack([torch.arange(5000), torch.arange(1, 5001)], dim=1)
    assert connected(chain).unique().tolist() == [0]
    assert connected(torch.arange(600).view(300, 2)).tolist() == list(range(300))
    assert connected(torch.zeros(0, 2, dtype=torch.int64)).tolist() == []
