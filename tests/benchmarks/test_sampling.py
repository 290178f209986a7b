import pytest

from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError

GROUPS = ["a"] * 10 + ["b"] * 3 + ["a"] * 2


def test_all_or_the_first_of_each_group():
    assert sample(GROUPS, None, 3) == list(range(15))
    assert sample(GROUPS, 4, None) == [0, 1, 2, 3, 10, 11, 12]
    assert sample([], 4, None) == []


def test_drawn_ones_are_spread_reproducible_and_in_order():
    drawn = [sample(GROUPS, 4, seed) for seed in range(20)]
    assert drawn[0] == sample(GROUPS, 4, 0)
    assert len({tuple(one) for one in drawn}) > 10
    assert {i for one in drawn for i in one} == set(range(15))
    for one in drawn:
        assert one == sorted(set(one))
        assert sum(GROUPS[i] == "a" for i in one) == 4


def test_limit_is_checked():
    check_limit(None)
    check_limit(1)
    with pytest.raises(UserError, match="at least 1"):
        check_limit(0)
