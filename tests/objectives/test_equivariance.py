import itertools
import random

import pytest
import torch

from vlmtune.objectives.equivariance import (
    close_pairs,
    distant_pairs,
    draw_close_pairs,
    eqsim_v1,
    eqsim_v2,
    equivariance_deviation,
    v2_deviation,
)


def matrix(rows):
    return torch.tensor(rows, dtype=torch.float64)


D = matrix(
    [
        [0.90, 0.95, 0.85, 0.80],
        [0.30, 0.55, 0.45, 0.05],
        [0.25, 0.15, 0.50, 0.40],
        [0.05, 0.30, 0.20, 0.70],
    ]
)
C = matrix(
    [
        [0.60, 0.50, 0.20, 0.10],
        [0.30, 0.55, 0.45, 0.05],
        [0.25, 0.15, 0.50, 0.40],
        [0.05, 0.30, 0.20, 0.70],
    ]
)
S = (C / 0.1).softmax(dim=1)
ALL = torch.tensor(list(itertools.combinations(range(4), 2)))
TOP2 = torch.tensor([(0, 1), (0, 2), (1, 2), (1, 0), (2, 3), (2, 0), (3, 1), (3, 2)])


def noise(n, seed=0):
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def once(pairs):
    return torch.tensor(sorted({tuple(sorted(pair)) for pair in pairs.tolist()}))


def near(got, want):
    assert got.item() == pytest.approx(want, abs=5e-11)


@pytest.mark.parametrize(
    ("s", "mean", "over_square", "over_n"),
    [
        (D, 0.2562500000, 0.1921875000, 0.7687500000),
        (C, 0.0395833333333, 0.0296875, 0.11875),
        (S, 0.0262633268, 0.0196974951, 0.0787899805),
    ],
)
def test_v1_of_all_pairs(s, mean, over_square, over_n):
    v1 = eqsim_v1(s, ALL)
    near(v1, mean)
    near(12 / 16 * v1, over_square)
    near(12 / 4 * v1, over_n)


@pytest.mark.parametrize(
    ("s", "pairs", "text", "image"),
    [
        (D, ALL, 0.1108333333333, 0.5308333333333),
        (D, TOP2, 0.0815625, 0.5353125),
        (C, ALL, 0.05, 0.0583333333333),
        (S, ALL, 0.0870089742, 0.0456528005),
    ],
)
def test_sides_of_v2(s, pairs, text, image):
    near(eqsim_v2(s, pairs, "text"), text)
    near(eqsim_v2(s, pairs, "image"), image)
    assert eqsim_v2(s, pairs).item() == pytest.approx(text + image, abs=2e-10)


@pytest.mark.parametrize(
    ("s", "pairs", "none", "mean", "pair"),
    [  # with margin 0: the sum; with margin 0.04, halved: hinge of the mean, hinge of each pair
        (D, ALL, 0.6416666666667, 0.2808333333333, 0.2866666666667),
        (D, TOP2, 0.6168750000, 0.2684375000, 0.2753125000),
        (C, ALL, 0.1083333333333, 0.0141666666667, 0.0306250000),
        (S, ALL, 0.1326617748, 0.0263308874, 0.0362101355),
    ],
)
def test_hinges_of_v2(s, pairs, none, mean, pair):
    assert eqsim_v2(s, pairs).item() == pytest.approx(none, abs=2e-10)
    near(0.5 * eqsim_v2(s, pairs, margin=0.04, hinge="mean"), mean)
    near(0.5 * eqsim_v2(s, pairs, margin=0.04, hinge="pair"), pair)


@pytest.mark.parametrize(
    ("s", "pairs", "want"),
    [
        (C, TOP2, 0.1118750000),
        (S, TOP2, 0.1319315389),
        (C, [(0, 1), (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 1)], 0.1393750000),
        (S, [(0, 1), (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 1)], 0.1546809562),
    ],
)
def test_v2_of_close_pairs_counts_what_is_listed_twice_twice(s, pairs, want):
    near(eqsim_v2(s, torch.as_tensor(pairs)), want)


@pytest.mark.parametrize(
    ("s", "hinge", "section_3", "table_6"),
    [
        (D, "mean", 0.4857500000, 0.3326250000),
        (D, "pair", 0.4927500000, 0.3396250000),
        (C, "mean", 0.0225, 0.0225),
        (C, "pair", 0.03675, 0.0427916666667),
        (S, "mean", 0.0264650112, 0.0264650112),
        (S, "pair", 0.0383201090, 0.0412871060),
    ],
)
def test_both_readings_of_the_paper(s, hinge, section_3, table_6):
    close = close_pairs(s, 2)
    options = {"margin": 0.04, "hinge": hinge}
    v2 = eqsim_v2(s, once(close), **options)
    near(0.5 * (v2 + eqsim_v1(s, distant_pairs(4, close), **options)), section_3)
    near(0.5 * (v2 + eqsim_v1(s, ALL, **options)), table_6)


@pytest.mark.parametrize("seed", range(5))
def test_v2_holds_v1_and_asks_for_equal_diagonals(seed):
    s11, s12, s21, s22 = noise(4, seed)
    text, image = v2_deviation(s11, s12, s21, s22)
    torch.testing.assert_close(text, ((s11 - s12) - (s22 - s21)) ** 2)
    torch.testing.assert_close(image, ((s11 - s21) - (s22 - s12)) ** 2)
    torch.testing.assert_close(text + image, 2 * ((s11 - s22) ** 2 + (s12 - s21) ** 2))


@pytest.mark.parametrize("side", ["text", "image", "both"])
@pytest.mark.parametrize("hinge", ["pair", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_are_those_of_the_loop(seed, hinge, side):
    chance = random.Random(seed)
    pairs = [tuple(chance.sample(range(6), 2)) for _ in range(9)]
    first, second = (noise(6, seed).requires_grad_() for _ in range(2))

    def mean(deviations):
        if hinge == "pair":
            return sum(max(d - 0.3, d * 0) for d in deviations) / len(deviations)
        middle = sum(deviations) / len(deviations)
        return max(middle - 0.3, middle * 0)

    v1, text, image = [], [], []
    for i, j in pairs:
        v1.append((second[i, j] - second[j, i]) ** 2)
        text.append((second[i, i] - second[i, j] - second[j, j] + second[j, i]) ** 2)
        image.append((second[i, i] - second[j, i] - second[j, j] + second[i, j]) ** 2)
    sides = {"text": [text], "image": [image], "both": [text, image]}[side]
    want = 2 * mean(v1) + sum(mean(deviations) for deviations in sides)
    listed = torch.tensor(pairs)
    got = 2 * eqsim_v1(first, listed, 0.3, hinge) + eqsim_v2(first, listed, side, 0.3, hinge)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        torch.autograd.grad(got, first)[0], torch.autograd.grad(want, second)[0]
    )


def test_no_pairs_cost_nothing():
    s, none = D.clone().requires_grad_(), torch.zeros(0, 2, dtype=torch.long)
    loss = eqsim_v1(s, none) + eqsim_v2(s, none, hinge="mean")
    loss.backward()
    assert loss == 0
    assert not s.grad.any()


def test_the_deviation_of_an_item():
    items = torch.stack([matrix([[0.9, 0.5], [0.3, 0.8]]), matrix([[0.7, 0.2], [0.2, 0.7]])])
    torch.testing.assert_close(equivariance_deviation(items), matrix([0.10, 0.0]))
    assert equivariance_deviation(items[None]).shape == (1, 2)


# -- close pairs ------------------------------------------------------------------------------


def test_close_pairs_by_row_and_column():
    assert set(map(tuple, close_pairs(D, 2).tolist())) == set(map(tuple, TOP2.tolist()))
    for s in (C, S):
        assert close_pairs(s, 1, "row").tolist() == [[0, 1], [1, 2], [2, 3], [3, 1]]
        assert close_pairs(s, 1, "column").tolist() == [[0, 1], [1, 0], [2, 1], [3, 2]]
        union = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 1], [3, 2]]
        assert close_pairs(s, 1, "union").tolist() == union


def test_of_equal_scores_the_first_is_close():
    assert close_pairs(torch.zeros(4, 4), 2).tolist() == [
        [0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1], [3, 0], [3, 1]
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["row", "column", "union"])
def test_more_than_there_are_is_all(by):
    assert len(close_pairs(noise(3), 9, by)) == 6
    assert len(close_pairs(noise(1), 9, by)) == 0


def test_distant_is_what_is_close_in_neither_direction():
    assert distant_pairs(4, TOP2).tolist() == [[0, 3]]
    assert len(distant_pairs(5, torch.zeros(0, 2, dtype=torch.long))) == 10


def test_draws_are_without_replacement_and_of_others():
    pairs = draw_close_pairs(noise(6), 3, torch.Generator().manual_seed(1))
    assert len(pairs) == 6 * (3 + 3)
    for i in range(6):
        drawn = pairs[pairs[:, 0] == i, 1].tolist()
        assert i not in drawn
        assert len(set(drawn[:3])) == len(set(drawn[3:])) == 3
    again = draw_close_pairs(noise(6), 3, torch.Generator().manual_seed(1))
    assert pairs.equal(again)
    assert not pairs.equal(draw_close_pairs(noise(6), 3, torch.Generator().manual_seed(2)))
    assert len(draw_close_pairs(noise(3), 4, torch.Generator(), "row")) == 6


@pytest.mark.parametrize("by", ["row", "column"])
def test_draws_follow_the_softmax(by):
    logits, generator = noise(4, 3), torch.Generator().manual_seed(0)
    first, both = torch.zeros(4, 4), torch.zeros(4, 4)
    for _ in range(1000):
        for seen, draws in ((first, 1), (both, 2)):
            i, j = draw_close_pairs(logits, draws, generator, by).unbind(1)
            seen[i, j] += 1 / 1000
    p = (logits if by == "row" else logits.T).masked_fill(torch.eye(4, dtype=torch.bool), -9e9)
    p = p.softmax(dim=1)
    torch.testing.assert_close(first.double(), p, atol=0.06, rtol=0)
    # Either as the first of two, or as the second after any other.
    after = torch.stack(
        [
            p[:, j] + sum(p[:, i] * p[:, j] / (1 - p[:, i]) for i in range(4) if i != j)
            for j in range(4)
        ],
        dim=1,
    )
    torch.testing.assert_close(both.double(), after, atol=0.06, rtol=0)
