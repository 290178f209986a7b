import random

import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics.multiple_choice import (
    choice_credit,
    choice_ranks,
    recall_chance,
    text_to_text_correct,
)


def naive(row: list[float], ties: str) -> tuple[float, float]:
    """Rank and credit of row[0], by sorting in each order that the rule allows."""
    others = row[1:]
    first = sorted(range(len(row)), key=lambda i: (-row[i], i)).index(0) + 1
    last = sorted(range(len(row)), key=lambda i: (-row[i], i == 0)).index(0) + 1
    best = max(row)
    if ties == "right":
        return first, float(row[0] == best)
    if ties == "wrong":
        return last, float(all(row[0] > other for other in others))
    winners = [i for i, value in enumerate(row) if value == best]
    return (first + last) / 2, 1 / len(winners) if 0 in winners else 0.0


@pytest.mark.parametrize("ties", ["wrong", "right", "random"])
def test_against_sorting(ties):
    rng = random.Random(0)
    rows = [[rng.randint(0, 3) / 3 for _ in range(5)] for _ in range(300)]
    scores = torch.tensor(rows)
    expected = torch.tensor([naive(row, ties) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(choice_ranks(scores, ties), expected[:, 0])
    torch.testing.assert_close(choice_credit(scores, ties), expected[:, 1])


def test_places_without_a_candidate_do_not_count_and_nan_raises():
    scores = torch.tensor([[0.5, 0.9, -torch.inf], [0.5, 0.1, -torch.inf]])
    assert choice_ranks(scores).tolist() == [2.0, 1.0]
    assert choice_credit(scores).tolist() == [0.0, 1.0]
    for wrong in (torch.nan, torch.inf):  # of a true candidate
        with refused("1 of 4 are NaN"):
            choice_credit(torch.tensor([[0.5, 0.1], [wrong, 0.1]]))
    with refused("NaN"):
        choice_ranks(torch.tensor([[0.5, torch.nan]]))


def test_chance_is_what_random_scores_reach():
    sizes = torch.tensor([2, 3, 6])
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(30000, 6, generator=generator)
    scores[torch.arange(6) >= sizes.repeat(10000)[:, None]] = -torch.inf
    ranks = choice_ranks(scores)
    for k in (1, 3, 5):
        hits = float((ranks <= k).double().mean())
        assert recall_chance(sizes, k) == pytest.approx(hits, abs=0.01)


def test_a_false_text_as_close_as_the_true_one_is_wrong():
    texts = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.6, 0.8]]])
    false = torch.tensor([[False, False, True]])
    assert not text_to_text_correct(texts, false, anchors=1)
