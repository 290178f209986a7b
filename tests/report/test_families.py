import pytest

from vlmtune.metrics.value import MetricValue
from vlmtune.report.families import families
from vlmtune.report.table import Row


def row(name, unit="fraction", n=9, primary=False):
    return Row("b", "1", "strict", name, primary, (MetricValue(0.5, n, 0.25, unit=unit),))


def test_three_groups_make_a_family():
    rows = [row(name) for name in ("acc", "acc/a", "other/a", "acc/b", "other/b", "acc/c")]
    (family,), others = families(rows)
    assert family.name == "acc"
    assert [group for group, _ in family.members] == ["a", "b", "c"]
    assert [one.metric for one in others] == ["acc", "other/a", "other/b"]


def test_groups_of_groups_are_families_of_their_own():
    names = [f"acc/{kind}/{size}" for kind in ("swap", "atom") for size in (4, 5, 12)]
    found, others = families([row(name) for name in names])
    assert [family.name for family in found] == ["acc/swap", "acc/atom"]
    assert found[0].positions == (4.0, 5.0, 12.0)
    assert found[0].axis == ""
    assert others == ()


@pytest.mark.parametrize(
    ("groups", "positions", "axis"),
    [
        (["attributes=1", "attributes=2", "attributes=3"], (1.0, 2.0, 3.0), "attributes"),
        (["-0.5", "0.5", "2"], (-0.5, 0.5, 2.0), ""),
        (["n=1", "m=2", "n=3"], None, "n"),
        (["1", "2", "many"], None, ""),
        (["1 object", "2 objects", "3"], None, ""),
    ],
)
def test_groups_that_are_numbers_make_an_axis(groups, positions, axis):
    (family,), _ = families([row(f"map/{group}") for group in groups])
    assert (family.positions, family.axis) == (positions, axis)


def test_what_has_no_common_scale_is_not_drawn():
    rows = [row(f"rank/{i}", "rank") for i in range(4)] + [row(f"n/{i}", "count") for i in range(4)]
    assert families(rows) == ((), tuple(rows))


def test_a_group_of_two_sizes_counts_once_and_the_primary_is_told_twice():
    rows = [row("acc/a", n=1), row("acc/a", n=2), row("acc/b")]
    assert families(rows)[0] == ()
    rows = [row("acc/a", primary=True), row("acc/b"), row("acc/c")]
    (family,), others = families(rows)
    assert len(family.members) == 3
    assert [one.metric for one in others] == ["acc/a"]
