from collections import Counter

import pytest
import torch

from tests.refusals import refused
from vlmtune.pairs.mixed_pairs import MixedPairs
from vlmtune.types import Targets


def batch():
    """Four images with two to four texts each, of their own, and one text that is true of all."""
    own, truth = torch.zeros(4, 13, dtype=torch.bool), torch.zeros(4, 13, dtype=torch.bool)
    start = 0
    for i, (texts, true) in enumerate([(2, 1), (3, 2), (4, 1), (3, 3)]):
        own[i, start : start + texts] = True
        truth[i, start : start + true] = True
        start += texts
    truth[:, 12] = True  # across groups
    return Targets(truth, own | truth, own)


def choose(seed=0, targets=None, **counts):
    generator = torch.Generator().manual_seed(seed)
    return MixedPairs(**counts)(targets or batch(), generator)


def kinds(chosen, targets):
    """For each image, how many true texts, hard negatives and others were chosen."""
    hard = targets.same_group & ~targets.truth
    other = ~targets.same_group & ~targets.truth
    return [
        tuple(int((chosen[i] & kind[i]).sum()) for kind in (targets.truth, hard, other))
        for i in range(len(chosen))
    ]


def test_each_image_gets_up_to_the_counts_of_each_kind():
    for counts, want in (
        ((1, 2, 3), [(1, 1, 3), (1, 1, 3), (1, 2, 3), (1, 0, 3)]),
        ((2, 0, 0), [(2, 0, 0)] * 4),
        ((0, 9, 0), [(0, 1, 0), (0, 1, 0), (0, 3, 0), (0, 0, 0)]),
        ((99, 99, 99), [(2, 1, 10), (3, 1, 9), (2, 3, 8), (4, 0, 9)]),
    ):
        names = ("positives", "hard_negatives", "random_negatives")
        assert kinds(choose(**dict(zip(names, counts, strict=True))), batch()) == want
    with refused("expected a count of pairs above 0"):
        MixedPairs(0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_annotated_comes_in_by_chance_only(seed):
    chosen = choose(seed, positives=9, hard_negatives=9, random_negatives=0)
    assert not (chosen & ~batch().known).any()
    assert (choose(seed, positives=0, hard_negatives=0, random_negatives=9) & ~batch().known).any()


def test_every_candidate_is_as_likely_as_another():
    generator = torch.Generator().manual_seed(0)
    counts = Counter()
    for _ in range(600):
        chosen = MixedPairs(0, 1, 0)(batch(), generator)
        counts.update(chosen[2].nonzero().flatten().tolist())
    assert counts.keys() == {6, 7, 8}
    assert all(150 < count < 250 for count in counts.values())  # 200 expected, deviation 12


@pytest.mark.parametrize("seed", range(20))
def test_mirrored_pairs_complete_what_eqsim_compares(seed):
    """Scenes of one group with one text and two, a third image alone, a caption of no image."""
    truth = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 1, 0]]) > 0
    group = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 0, 1], [0, 0, 0, 1, 0]]) > 0
    targets = Targets(truth, group, group)
    counts = {"positives": 1, "hard_negatives": 3, "random_negatives": 1}
    plain, both = (choose(seed, targets, **counts, mirrored=on) for on in (False, True))
    assert (plain <= both).all()
    assert both[:2, 2].all()  # the caption is scored with its group
    images = [0, 1, None, 2, 1]  # of each text
    for i, t in (plain & ~truth).nonzero().tolist():
        if images[t] is not None:
            assert both[images[t], t]
            assert both[images[t], (plain & truth)[i]].all()
    added = (both & ~plain).nonzero().tolist()
    assert all(plain[images[t], truth[a]].any() for a, t in added if not truth[a, t])
