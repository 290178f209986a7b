import pytest

from tests.scored import naive_contrast, random_computed, random_targets, random_values
from vlmtune.objectives.triplet_clip import TripletClip
from vlmtune.types import Scores


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_double_loop(seed):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    true, false = targets.truth & computed, ~targets.truth & computed
    want = naive_contrast(values, true, false)
    want += naive_contrast(values.T, true.T, (false & ~targets.same_group).T)
    got = TripletClip()(Scores(values, computed), targets)
    assert got.item() == pytest.approx(want, abs=1e-12)
