from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests.refusals import refused
from tests.toy import Together, Toy, Tune, batch, groups, own_scores, share
from vlmtune.pairs.base import PairPolicy, sample_rows
from vlmtune.pairs.hard_pairs import HardPairs
from vlmtune.pairs.mutual_pairs import MutualPairs
from vlmtune.pairs.ranking_pairs import RankingPairs
from vlmtune.training.scores import TrainingScores
from vlmtune.types import Targets


def targets():
    """Four images: two texts of the first, one of each other, one of all and one of none."""
    truth = torch.zeros(4, 7, dtype=torch.bool)
    truth[0, :2] = truth[1, 2] = truth[2, 3] = truth[3, 4] = True
    truth[:, 5] = True
    return Targets(truth, truth, truth)


def reference():
    return 3 * torch.randn(4, 7, generator=torch.Generator().manual_seed(7))


def choose(policy, seed=0, given=None, scores=None):
    scores = reference() if scores is None else scores
    return policy(given or targets(), torch.Generator().manual_seed(seed), scores)


@pytest.mark.parametrize("seed", range(10))
def test_each_true_pair_brings_a_hard_text_and_a_hard_image(seed):
    truth, generator = targets().truth, torch.Generator().manual_seed(seed)
    texts = sample_rows(reference(), ~truth, truth.sum(dim=1), generator)
    images = sample_rows(reference().T, ~truth.T, truth.sum(dim=0), generator).T
    assert not ((texts | images) & truth).any()
    assert texts.sum(dim=1).equal(truth.sum(dim=1))
    # The text that is true of all images has no false one, the text of none has no true one.
    assert images.sum(dim=0).tolist() == [1, 1, 1, 1, 1, 0, 0]
    assert choose(HardPairs(), seed).equal(truth | texts | images)


def test_several_are_drawn_one_after_the_other():
    """The probability of each set of two, by hand."""
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    p = logits.softmax(dim=1)[0].tolist()
    pairs = ((0, 1), (0, 2), (1, 2))
    orders = {pair: (pair, pair[::-1]) for pair in pairs}
    want = {x: sum(p[a] * p[b] / (1 - p[a]) for a, b in two) for x, two in orders.items()}
    counts, generator = Counter(), torch.Generator().manual_seed(1)
    every, two = torch.ones(1, 3, dtype=torch.bool), torch.tensor([2])
    for _ in range(1500):
        found = sample_rows(logits, every, two, generator).nonzero()[:, 1].tolist()
        counts[tuple(found)] += 1
    for pair, fraction in want.items():
        assert counts[pair] / 1500 == pytest.approx(fraction, abs=0.05)


@pytest.mark.parametrize("hard", [0, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_ranking_has_one_true_text_and_the_negatives(hard, seed):
    truth = targets().truth
    chosen = choose(RankingPairs(negatives=3, hard=hard), seed)
    assert (chosen & truth).sum(dim=1).tolist() == [1] * 4
    assert (chosen & ~truth).sum(dim=1).tolist() == [3] * 4
    more = choose(RankingPairs(negatives=15, hard=min(hard, 15)), seed)
    assert (more & ~truth).equal(~truth)


def test_hard_negatives_are_those_with_high_scores():
    truth = targets().truth
    cold = choose(RankingPairs(negatives=2, hard=2), scores=1000 * reference()) & ~truth
    best = reference().masked_fill(truth, -torch.inf).topk(2, dim=1).indices
    assert cold.equal(torch.zeros_like(truth).scatter(1, best, True))
    # Mutual ones, too.
    size = 12
    scores = torch.zeros(size, size)
    for a in range(0, size, 2):  # couples that resemble each other, seen from one side only
        seen, other = (a, a + 1) if a % 4 else (a + 1, a)
        scores[seen, other] = 200.0
    chosen = MutualPairs(1, 1)(ring(size), torch.Generator().manual_seed(0), scores)
    couples = torch.arange(size) // 2
    assert chosen.equal(couples[:, None] == couples)


def test_mirrored_pairs_are_what_eqsim_compares():
    eye = torch.eye(5, dtype=torch.bool)
    five = Targets(eye, eye, eye)
    generator = torch.Generator().manual_seed(3)
    plain = RankingPairs(negatives=2)(five, generator)
    generator.manual_seed(3)
    mirrored = RankingPairs(negatives=2, mirrored=True)(five, generator)
    assert mirrored.equal(plain | plain.T | eye)


def test_an_image_without_a_true_text_brings_nothing():
    truth = torch.tensor([[False, False, False], [True, False, False]])
    given = Targets(truth, truth, truth)
    scores = torch.zeros(2, 3)
    for policy in (RankingPairs(2, 1), MutualPairs(2, 1)):
        assert not policy(given, torch.Generator(), scores)[0].any()
    only = HardPairs()(given, torch.Generator(), scores) & torch.tensor([True, False, False])
    assert only.tolist() == [[True, False, False], [True, False, False]]


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        (RankingPairs, {"negatives": 2, "hard": 3}),
        (MutualPairs, {"hard": 16}),
        (RankingPairs, {"hard": 8, "mined": 8}),
        (MutualPairs, {"negatives": 2, "mined": 3}),
    ],
)
def test_numbers_must_make_sense(policy, arguments):
    with refused("raise negatives"):
        policy(**arguments)


def mined():
    """Three texts for the first image and one for the second, each also marked at a true text."""
    given, marked = targets(), torch.zeros(4, 7, dtype=torch.bool)
    marked[0, [0, 2, 3, 6]] = marked[1, [2, 0]] = True
    return replace(given, mined_negatives=marked)


@pytest.mark.parametrize(("negatives", "hard", "wanted"), [(3, 0, 2), (3, 1, 2), (4, 1, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_mined_texts_come_first_and_others_replace_missing_ones(negatives, hard, wanted, seed):
    given = mined()
    chosen = choose(RankingPairs(negatives, hard, mined=wanted), seed, given)
    assert (chosen & given.truth).sum(dim=1).tolist() == [1] * 4
    assert (chosen & ~given.truth).sum(dim=1).tolist() == [negatives] * 4
    there = chosen & ~given.truth & given.mined_negatives
    assert there[0].sum() >= wanted
    assert there[1].sum() == 1  # all there is
    # Where the backbone's scores choose too, they choose from the rest.
    if hard:
        cold = choose(RankingPairs(negatives, hard, wanted), seed, given, 1000 * reference())
        left_out = given.truth[1] | given.mined_negatives[1]
        assert cold[1, reference()[1].masked_fill(left_out, -torch.inf).argmax()]


def test_every_mined_text_is_as_likely_as_another():
    counts, generator = Counter(), torch.Generator().manual_seed(0)
    for _ in range(600):
        chosen = RankingPairs(1, mined=1)(mined(), generator)
        counts.update((chosen & ~targets().truth)[0].nonzero().flatten().tolist())
    assert counts.keys() == {2, 3, 6}
    assert all(150 < count < 250 for count in counts.values())  # 200 expected, deviation 12


@pytest.mark.parametrize("seed", range(5))
def test_marks_count_only_where_they_are_asked_for(seed):
    for kind in (RankingPairs, MutualPairs):
        for hard in (0, 2):
            plain = choose(kind(3, hard), seed)
            assert choose(kind(3, hard), seed, mined()).equal(plain)
            assert choose(kind(3, hard, mined=1), seed).equal(plain)  # nothing was mined
    unmarked = replace(targets(), mined_negatives=torch.zeros(4, 7, dtype=torch.bool))
    chosen = choose(RankingPairs(3, mined=2), seed, unmarked)
    assert (chosen & ~unmarked.truth).sum(dim=1).tolist() == [3] * 4


def test_only_hard_pairs_need_embeddings_and_only_mined_ones_neighbours():
    for kind in (RankingPairs, MutualPairs):
        assert (kind(mined=8).needs_reference, kind(mined=8).needs_mined_negatives) == (False, True)
        assert (kind(hard=8).needs_reference, kind(hard=8).needs_mined_negatives) == (True, False)
        assert kind(hard=7, mined=8).needs_reference
    assert not HardPairs().needs_mined_negatives
    scores = TrainingScores(Toy(), Together(), RankingPairs(2, mined=1))
    with refused(r"mined neighbours for RankingPairs, .* set data.mined"):
        share(scores, BATCH)
    scores.adapter.eval()  # in validation there are none
    assert share(scores, BATCH).rows.computed.any()


class Noting(PairPolicy):
    """Scores all pairs and keeps what it is given."""

    needs_reference = True

    def __init__(self):
        self.given = []

    def __call__(self, targets, generator, reference=None):
        self.given.append(reference)
        return torch.ones_like(targets.truth)


BATCH = batch([group for part in groups((2, 2)) for group in part])


def test_a_policy_is_given_the_scores_of_the_frozen_backbone():
    policy = Noting()
    scores = TrainingScores(Toy(), Together(), policy)
    share(scores, BATCH)
    (given,) = policy.given
    torch.testing.assert_close(given, own_scores(Toy(), BATCH))
    assert not given.requires_grad


def test_a_reference_needs_embeddings_and_a_dual_adapter_no_reference():
    scores = TrainingScores(Toy(), Tune(), Noting())
    assert "reference" not in scores.needs
    assert scores.original is None

    class Unpooled(Toy):
        def fits(self, reads, modality):
            return "it has none" if reads.kind == "pooled" else None

    with refused(r"pooled image embeddings .* other pairs than HardPairs"):
        TrainingScores(Unpooled(), Together(), HardPairs())


def ring(size):
    """As many images as texts, each with its own."""
    own = torch.eye(size, dtype=torch.bool)
    return Targets(own, own, own)


@pytest.mark.parametrize("hard", [0, 3])
@pytest.mark.parametrize("mined", [0, 2])
@pytest.mark.parametrize("seed", range(5))
def test_mutual_negatives_meet_both_ways_and_mined_ones_come_first(hard, mined, seed):
    size, negatives = 20, 6
    scores = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    marked = torch.zeros(size, size, dtype=torch.bool)
    for a in range(size):  # one side knows of the other; true texts are marked to no effect
        side = marked if a % 2 else marked.T
        side[a, [a, (a + 1) % size, (a + 2) % size]] = mined > 0
    given = replace(ring(size), mined_negatives=marked)
    policy = MutualPairs(negatives, hard, mined=mined)
    chosen = policy(given, torch.Generator().manual_seed(seed), scores)
    assert chosen.diagonal().all()
    assert chosen.equal(chosen.T)
    partners = chosen & ~torch.eye(size, dtype=torch.bool)
    degrees = partners.sum(dim=1)
    assert degrees.max() <= negatives
    near = (marked | marked.T) & ~torch.eye(size, dtype=torch.bool)
    # No two that are mined for each other went without, both wanting more.
    wanting = (partners & near).sum(dim=1) < mined
    assert not (near & ~partners)[wanting][:, wanting].any()
    assert not mined or (partners & near).sum() >= 2 * size - 6
    # Greedy matching leaves no two images that both want more and may have each other.
    short = degrees < negatives
    assert chosen[short][:, short].all()
    assert degrees.sum() >= negatives * size - 2 * negatives


@pytest.mark.parametrize("seed", range(10))
def test_mutual_negatives_are_false_both_ways(seed):
    truth = targets().truth
    chosen = choose(MutualPairs(2, 1), seed)
    # Where the text of all is an image's true one, that image is no one's negative.
    assert (chosen & truth).sum(dim=1).tolist() == [1, 1, 1, 1]
    own = (chosen & truth).int().argmax(dim=1)
    for i, j in (chosen & ~truth).nonzero().tolist():
        (partner,) = (own == j).nonzero()[:, 0].tolist()
        assert chosen[partner, own[i]]
        assert not truth[partner, own[i]]
