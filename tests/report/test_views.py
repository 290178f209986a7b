from dataclasses import replace

import pytest

from tests.report.conftest import changed
from vlmtune.report.four_scores import matrix
from vlmtune.report.table import Row, sections
from vlmtune.report.views import Views, families
from vlmtune.results.metric_value import MetricValue


@pytest.fixture
def views_of(make_run):
    """The views of the first benchmark of runs, whose result is changed as given."""

    def made(*changes, text_only=()):
        runs = []
        for i, change in enumerate(changes):
            run = changed(make_run(f"run {i}", 0.2 + 0.1 * i), **change)
            runs.append(replace(run, text_only=i in text_only))
        views = Views(runs)
        return [views.section(part) for part in sections(runs)]

    return made


def groups(*names, value=0.5, unit="fraction"):
    metric = MetricValue(value, 9, 0.25, value - 0.1, value + 0.1, unit=unit)
    return {"metrics": dict.fromkeys(["accuracy", *names], metric)}


def test_groups_of_dimensions_make_a_profile(views_of):
    names = ["words/a", "words/b", "words/c", "words", "counts", "scenes"]
    (one,) = views_of(groups(*(f"accuracy/{name}" for name in names)))
    assert [plot["name"] for plot in one["profile"]] == ["accuracy", "words"]
    # The plot stands for the bars, which are closed.
    assert not any(family["open"] for family in one["families"])
    (flat,) = views_of(groups(*(f"accuracy/{name}" for name in "abc")))
    assert flat["profile"] == []


def test_gains_are_those_over_the_first_run_and_text_only_runs_have_no_matrix(views_of):
    (one,) = views_of({}, {}, {}, text_only=[2])
    (row,) = one["rows"]
    assert [cell["gain"] for cell in row["cells"]] == ["", "+10.0", ""]
    assert [cell["direction"] for cell in row["cells"]] == ["", "better", ""]
    scores = {"series": {"mean_scores": (2.0, 1.0, 0.5, 0.75)}}
    (one,) = views_of(scores, {}, scores, text_only=[2])
    assert [heat["name"] for heat in one["matrices"]] == ["run 0"]
    assert one["series"] == []


def test_a_false_pair_must_be_below_both_true_ones():
    def crosses(*scores):
        return [cell["wrong"] for row in matrix(scores) for cell in row]

    assert crosses(2.0, 1.0, 0.5, 3.0) == [False, False, False, False]
    assert crosses(2.0, 1.0, 0.5, 1.0) == [False, True, False, False]
    assert crosses(0.0, 0.0, 0.0, 0.0) == [False, True, True, False]


def row(name, unit="fraction", n=9, primary=False):
    return Row("b", "1", "strict", name, primary, (MetricValue(0.5, n, 0.25, unit=unit),))


def test_three_groups_make_a_family():
    rows = [row(name) for name in ("acc", "acc/a", "other/a", "acc/b", "other/b", "acc/c")]
    (family,), others = families(rows)
    assert family.name == "acc"
    assert [group for group, _ in family.members] == ["a", "b", "c"]
    assert [one.metric for one in others] == ["acc", "other/a", "other/b"]
    # So do groups of groups, but not counts and ranks.
    names = [f"acc/{kind}/{size}" for kind in ("swap", "atom") for size in (4, 5, 12)]
    parts, others = families([row(name) for name in names])
    assert [family.name for family in parts] == ["acc/swap", "acc/atom"]
    assert others == ()
    rows = [row(f"rank/{i}", "rank") for i in range(4)] + [row(f"n/{i}", "count") for i in range(4)]
    assert families(rows) == ((), tuple(rows))
    rows = [row("acc/a", n=1), row("acc/a", n=2), row("acc/b")]
    assert families(rows)[0] == ()
    rows = [row("acc/a", primary=True), row("acc/b"), row("acc/c")]
    (family,), others = families(rows)
    assert len(family.members) == 3
    assert [one.metric for one in others] == ["acc/a"]


def test_distributions_share_an_axis_unless_one_is_eight_times_as_wide(views_of):
    """The widths are 10, 1 and 70: 10 is more than eight times 1, 70 less than eight times 10."""
    changes = [{"series": {"margin": (0.0, width)}} for width in (10.0, 1.0, 70.0)]
    (section,) = views_of(*changes)
    listed = [[run["name"] for run in plot["runs"]] for plot in section["series"]]
    assert listed == [["run 0", "run 2"], ["run 1"]]
    assert section["series"][0]["runs"][0]["median"] == "5"
    assert section["matrices"] == []
