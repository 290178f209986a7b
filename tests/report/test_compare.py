from dataclasses import replace

import pytest
import torch

from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import mcnemar, paired_difference
from vlmtune.metrics.value import MetricValue
from vlmtune.report.compare import against_first
from vlmtune.report.result import Result


def result(earned, **changes):
    accuracy = MetricValue(sum(earned) / len(earned), len(earned), 0.5)
    whole = Result("cola", "1", "accuracy", {"accuracy": accuracy}, outcomes=earned)
    return replace(whole, **changes)


OLD = (0.0,) * 10 + (1.0,) * 4
NEW = (1.0,) * 10 + (0.0, 1.0, 1.0, 1.0)


@pytest.fixture
def against(make_run):
    """Compares a second result with a first one."""

    def made(old, new):
        runs = [
            replace(make_run(name), results=() if one is None else (one,))
            for name, one in (("first", old), ("second", new))
        ]
        return against_first(runs)

    return made


def test_items_are_compared_one_by_one(against):
    (found,) = against(result(OLD), result(NEW))
    assert (found.run, found.change, found.why) == (1, pytest.approx(9 / 14), "")
    assert (found.paired.won, found.paired.lost, found.paired.n) == (10, 1, 14)
    assert found.paired.p == mcnemar(10, 1)
    assert (found.direction, found.verdict) == ("better", "better")
    (found,) = against(result(NEW), result(OLD))
    assert (found.direction, found.verdict) == ("worse", "worse")


def test_chance_alone_is_no_difference(against):
    (found,) = against(result((1.0, 0.0, 1.0)), result((1.0, 1.0, 0.0)))
    assert (found.direction, found.verdict) == ("", "no difference shown")
    (found,) = against(result((1.0, 0.0, 1.0)), result((1.0, 0.0, 0.0)))
    assert (found.direction, found.verdict) == ("worse", "no difference shown")


def test_items_of_one_image_are_resampled_together(against):
    clusters = tuple(i // 2 for i in range(14))
    (found,) = against(result(OLD, clusters=clusters), result(NEW, clusters=clusters))
    new, old = (torch.tensor(x, dtype=torch.float64) for x in (NEW, OLD))
    assert found.paired == paired_difference(new, old, torch.tensor(clusters))
    assert found.paired.test == "bootstrap"


def test_a_mean_over_groups_is_tested_with_their_weights(against):
    members, weights = (0,) * 12 + (2, -1), (3.0, 1.0, 1.0)
    grouped = {"groups": members, "group_weights": weights}
    groups = ItemGroups(torch.tensor(members), torch.tensor(weights, dtype=torch.float64))
    new, old = (torch.tensor(x, dtype=torch.float64) for x in (NEW, OLD))
    runs = [
        result(x, **grouped, metrics={"accuracy": MetricValue(groups.mean(y), 2)})
        for x, y in ((OLD, old), (NEW, new))
    ]
    (found,) = against(*runs)
    assert found.paired == paired_difference(new, old, groups=groups)
    assert found.paired.difference == pytest.approx(found.change, abs=1e-15)
    assert (found.paired.won, found.paired.lost, found.paired.n) == (10, 1, 13)
    assert (found.paired.test, found.verdict) == ("bootstrap", "better")
    for other in ({"groups": (0,) * 13 + (-1,)}, {"group_weights": (1.0, 1.0, 3.0)}, {"degree": 2}):
        (found,) = against(runs[0], replace(runs[1], **other))
        assert found.paired is None
        assert found.change is not None
        assert found.why == "other items count, or in other groups"


def test_means_over_pairs_vary_twice_as_much(against):
    cosines = [tuple(0.1 * ((7 * i + k * i * i) % 10) for i in range(20)) for k in (1, 3)]
    (one,) = against(*(result(x) for x in cosines))
    (two,) = against(*(result(x, degree=2) for x in cosines))
    assert one.paired.difference == two.paired.difference
    widths = [found.paired.high - found.paired.low for found in (one, two)]
    assert widths[1] == pytest.approx(2 * widths[0])
    assert (one.paired.n, one.paired.won) == (two.paired.n, two.paired.won)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "2"}, "another version: 2, not 1"),
        ({"convention": "reference"}, "another convention: reference, not strict"),
        ({"items_digest": "b"}, "other items of the same number"),
        (
            {"primary": "map", "metrics": {"map": MetricValue(0.5, 14)}},
            "another primary metric: map, not accuracy",
        ),
        ({"metrics": {"accuracy": MetricValue(0.5, 7)}}, "another number of items: 7, not 14"),
        ({"outcomes": NEW[1:]}, "another number of items: 13, not 14"),
    ],
)
def test_what_does_not_compare_is_not_subtracted(against, changes, why):
    (found,) = against(
        result(OLD, items_digest="a"), result(NEW, **{"items_digest": "a", **changes})
    )
    assert (found.change, found.paired, found.why) == (None, None, why)
    assert (found.direction, found.verdict) == ("", "")


def test_a_baseline_that_lacks_the_benchmark(against):
    (found,) = against(None, result(NEW))
    assert (found.change, found.why) == (None, "first has no number")
    assert against(result(OLD), None) == ()


def test_numbers_without_items_are_subtracted_and_not_tested(against):
    (found,) = against(result(OLD, outcomes=()), result(OLD, outcomes=()))
    assert (found.change, found.paired) == (0.0, None)
    assert found.why == "the report has no outcomes of items"
    (found,) = against(result(OLD, clusters=(0,) * 14), result(NEW, clusters=tuple(range(14))))
    assert found.paired is None
    assert found.why == "the items stand in another order"
    assert found.change == pytest.approx(9 / 14)


def test_a_rank_that_falls_is_better(against):
    ranks = [
        Result("b", "1", "rank", {"rank": MetricValue(x, 3, higher_is_better=False, unit="rank")})
        for x in (4.0, 2.5)
    ]
    (found,) = against(*ranks)
    assert (found.change, found.direction) == (-1.5, "better")


def test_unknown_items_are_told_apart_by_their_number_only(against):
    (found,) = against(result(OLD, items_digest=""), result(NEW, items_digest="a"))
    assert found.paired is not None


def test_blind_runs_are_not_compared(make_run):
    first = replace(make_run("a"), results=(result(OLD),))
    blind = replace(make_run("b"), results=(result(NEW),), text_only=True)
    assert against_first([first, blind]) == ()
    assert [one.run for one in against_first([blind, first, replace(first, name="c")])] == [2]
