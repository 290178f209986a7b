from dataclasses import replace

import pytest
import torch

from vlmtune.metrics import mcnemar, paired_difference, seeded_difference
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.report.differences import compare_with_first
from vlmtune.results import MetricValue, Result


def result(values, **changes):
    accuracy = MetricValue(sum(values) / len(values), len(values), 0.5)
    base = Result("cola", "1", "accuracy", {"accuracy": accuracy}, outcomes=values)
    return replace(base, **changes)


OLD = (0.0,) * 10 + (1.0,) * 4
NEW = (1.0,) * 10 + (0.0, 1.0, 1.0, 1.0)


@pytest.fixture
def against(make_run):
    def made(*results):
        old, new = (tuple(filter(None, [one])) for one in results)
        runs = [replace(make_run("first"), results=old), replace(make_run("second"), results=new)]
        return compare_with_first(runs)

    return made


def test_items_are_compared_one_by_one_and_chance_alone_is_no_difference(against):
    (comparison,) = against(result(OLD), result(NEW))
    assert (comparison.run, comparison.change, comparison.reason) == (1, pytest.approx(9 / 14), "")
    assert (comparison.paired.won, comparison.paired.lost, comparison.paired.n) == (10, 1, 14)
    assert comparison.paired.p == mcnemar(10, 1)
    few = (1.0, 0.0, 1.0)
    for old, new, direction, verdict in (
        (OLD, NEW, "better", "better"),
        (NEW, OLD, "worse", "worse"),
        (few, (1.0, 1.0, 0.0), "", "not significant"),
        (few, (1.0, 0.0, 0.0), "worse", "not significant"),
    ):
        (comparison,) = against(result(old), result(new))
        assert (comparison.direction, comparison.verdict) == (direction, verdict)


def test_items_of_one_image_count_together(against):
    clusters = tuple(i // 2 for i in range(14))
    (comparison,) = against(result(OLD, clusters=clusters), result(NEW, clusters=clusters))
    new, old = (torch.tensor(x, dtype=torch.float64) for x in (NEW, OLD))
    assert comparison.paired == paired_difference(new, old, torch.tensor(clusters), bound=1.0)
    assert comparison.paired.high == 1.0
    assert comparison.paired.test == "t"


def test_a_mean_over_groups_is_tested_with_their_weights(against):
    members, weights = (0,) * 12 + (2, -1), (3.0, 1.0, 1.0)
    grouped = {"groups": members, "group_weights": weights}
    groups = ItemGroups(torch.tensor(members), torch.tensor(weights, dtype=torch.float64))
    new, old = (torch.tensor(x, dtype=torch.float64) for x in (NEW, OLD))
    # Of the first twelve items 2 were right and 11 are, the other one always is.
    pairs = ((OLD, (3 * 2 / 12 + 1) / 4), (NEW, (3 * 11 / 12 + 1) / 4))
    runs = [result(x, **grouped, metrics={"accuracy": MetricValue(y, 2)}) for x, y in pairs]
    (comparison,) = against(*runs)
    assert comparison.paired == paired_difference(new, old, groups=groups, bound=1.0)
    assert comparison.paired.difference == pytest.approx(comparison.change, abs=1e-15)
    assert (comparison.paired.won, comparison.paired.lost, comparison.paired.n) == (10, 1, 13)
    # A quarter of the weight lies on one item.
    assert (comparison.paired.test, comparison.verdict) == ("t", "not significant")
    for other in ({"groups": (0,) * 13 + (-1,)}, {"group_weights": (1.0, 1.0, 3.0)}, {"degree": 2}):
        (comparison,) = against(runs[0], replace(runs[1], **other))
        assert comparison.paired is None
        assert comparison.change is not None
        assert comparison.reason == "the items are grouped or weighted in another way"


def test_means_over_pairs_vary_twice_as_much(against):
    cosines = [tuple(0.1 * ((7 * i + k * i * i) % 10) for i in range(20)) for k in (1, 3)]
    (one,) = against(*(result(x) for x in cosines))
    (two,) = against(*(result(x, degree=2) for x in cosines))
    assert one.paired.difference == two.paired.difference
    widths = [comparison.paired.high - comparison.paired.low for comparison in (one, two)]
    assert widths[1] == pytest.approx(2 * widths[0])
    assert (one.paired.n, one.paired.won) == (two.paired.n, two.paired.won)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "2"}, "another version: 2, not 1"),
        ({"convention": "reference"}, "another convention: reference, not strict"),
        ({"items_digest": "b"}, "the same number of items, but different items"),
        (
            {"primary": "map", "metrics": {"map": MetricValue(0.5, 14)}},
            "another primary metric: map, not accuracy",
        ),
        ({"metrics": {"accuracy": MetricValue(0.5, 7)}}, "another number of items: 7, not 14"),
        ({"outcomes": NEW[1:]}, "another number of items: 13, not 14"),
    ],
)
def test_numbers_that_do_not_compare_are_not_subtracted(against, changes, why):
    new = result(NEW, **{"items_digest": "a", **changes})
    (comparison,) = against(result(OLD, items_digest="a"), new)
    assert (comparison.change, comparison.paired, comparison.reason) == (None, None, why)
    assert (comparison.direction, comparison.verdict) == ("", "")


def test_numbers_without_items_are_subtracted_and_not_tested(against):
    (comparison,) = against(result(OLD, outcomes=()), result(OLD, outcomes=()))
    assert (comparison.change, comparison.paired) == (0.0, None)
    assert comparison.reason == "the report has no outcomes of items"
    (comparison,) = against(result(OLD, clusters=(0,) * 14), result(NEW, clusters=tuple(range(14))))
    assert comparison.paired is None
    assert comparison.reason == "the items are in another order"
    assert comparison.change == pytest.approx(9 / 14)
    # Unknown items are compared by their number only.
    (comparison,) = against(result(OLD, items_digest=""), result(NEW, items_digest="a"))
    assert comparison.paired is not None


def test_a_rank_that_falls_is_better_and_a_benchmark_of_one_run_is_not_compared(against):
    (comparison,) = against(None, result(NEW))
    assert (comparison.change, comparison.reason) == (None, "first has no number")
    assert against(result(OLD), None) == ()
    values = (MetricValue(x, 3, higher_is_better=False, unit="rank") for x in (4.0, 2.5))
    ranks = [Result("b", "1", "rank", {"rank": value}) for value in values]
    (comparison,) = against(*ranks)
    assert (comparison.change, comparison.direction) == (-1.5, "better")


def test_runs_of_a_measurement_are_drawn_in_pairs(against):
    """Of two runs of a probe one changes: items alone would be sure of it."""

    def measured(runs):
        mean = tuple(sum(x) / 2 for x in zip(*runs, strict=True))
        return result(mean, runs=runs, kind="sensitivity")

    old, new = ((0.5,) * 60, (0.5,) * 60), ((0.6,) * 60, (0.5,) * 60)
    before, after = measured(old), measured(new)
    (comparison,) = against(before, after)
    rows = [torch.tensor(runs, dtype=torch.float64) for runs in (new, old)]
    assert comparison.paired == seeded_difference(*rows, paired=True)
    assert comparison.verdict == "not significant"
    (alone,) = against(replace(before, runs=()), replace(after, runs=()))
    assert alone.verdict == "more sensitive"  # as if the two runs were all there are
    assert {x.direction for x in (*against(before, after), alone)} == {"more sensitive"}
    (fewer,) = against(after, before)
    assert fewer.direction == "less sensitive"
    # Unequal numbers of runs have no pairs, so their means are compared.
    (uneven,) = against(before, replace(after, runs=new[:1]))
    assert uneven.paired.test == "t"
