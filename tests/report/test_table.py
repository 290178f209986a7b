from dataclasses import replace

import pytest

from tests.refusals import refused
from tests.report.conftest import changed
from vlmtune.report.table import baseline, check_runs, colours, rows, sections


def by_metric(runs):
    made = rows(runs)
    return {(r.benchmark, r.version, r.convention, r.metric, r.first.n): r for r in made}


def test_rows_and_best(make_run):
    runs = [make_run("zero", 0.2, trained=0), make_run("a", 0.4), make_run("b", 0.4)]
    table = by_metric(runs)
    accuracy = table["cola_multi", "1", "strict", "accuracy", 210]
    assert [cell.value for cell in accuracy.cells] == [0.2, 0.4, 0.4]
    assert accuracy.best == {1, 2}
    assert accuracy.primary
    assert accuracy.arrow == "↑"
    rank = table["cola_single", "1", "strict", "mean_rank_true", 96]
    assert rank.arrow == "↓"
    assert not rank.primary
    assert rank.best == {0, 1, 2}
    assert table["cola_single", "1", "strict", "classes_without_positives", 96].best == frozenset()
    metrics = runs[1].results[1].metrics
    metrics["mean_rank_true"] = type(metrics["map"])(3.0, 96, higher_is_better=False, unit="rank")
    assert by_metric(runs)["cola_single", "1", "strict", "mean_rank_true", 96].best == {1}


def test_the_best_of_a_row_is_found_once_for_all_runs(make_run):
    row = rows([make_run("zero-shot", 0.2), make_run("a", 0.4)])[0]
    assert row.best is row.best  # each cell of the page asks for it


def test_no_sensitivity_is_the_best(make_run):
    runs = [changed(make_run(name), kind="sensitivity") for name in "ab"]
    accuracy = by_metric(runs)["cola_multi", "1", "strict", "accuracy", 210]
    assert (accuracy.best, accuracy.arrow) == (frozenset(), "")


def test_a_section_has_its_primary_metric_first_and_those_of_groups_last(make_run):
    run = make_run("a")
    metric = run.results[0].metrics["accuracy"]
    metrics = dict.fromkeys(("accuracy/swap", "macro", "accuracy", "accuracy/add"), metric)
    (section,) = sections([changed(run, metrics=metrics)])
    listed = [row.metric for row in section.rows]
    assert listed == ["accuracy", "macro", "accuracy/swap", "accuracy/add"]


@pytest.mark.parametrize("other", [{"version": "2"}, {"n": 100}])
def test_numbers_that_do_not_compare_have_their_own_rows(make_run, other):
    runs = [make_run("a", 0.2), make_run("b", 0.4, **other)]
    parts = [row for row in rows(runs) if row.metric == "accuracy"]
    shown = [[cell is not None for cell in row.cells] for row in parts]
    assert shown == [[True, False], [False, True]]
    assert all(row.best == frozenset() for row in parts)


def test_as_many_other_items_do_not_compare_and_unknown_ones_do(make_run):
    digests = {"a": "x", "b": "y", "c": "x", "d": ""}
    runs = [changed(make_run(name), items_digest=digest) for name, digest in digests.items()]
    shown = [[cell is not None for cell in row.cells] for row in rows(runs[:3])]
    assert shown == [[True, False, True], [False, True, False]]
    (row,) = rows([runs[0], runs[3]])
    assert None not in row.cells


def test_runs_have_colours_different_names_and_a_baseline(make_run):
    runs = [make_run("a"), make_run("zero", trained=0), *(make_run(f"r{i}") for i in range(8))]
    assert colours(runs)[:4] == (1, 0, 2, 3)
    assert max(colours(runs)) == 7
    text_only = replace(make_run("text-only", trained=0), text_only=True)
    assert colours([make_run("zero", trained=0), text_only]) == (0, 1)
    zeros = [make_run(name, trained=0) for name in "ab"]
    assert colours([*zeros, make_run("c")]) == (0, 1, 2)  # two models as they are differ, too
    runs = [make_run("a"), make_run("zero", trained=0)]
    text_only = replace(make_run("text-only"), text_only=True)
    assert baseline(runs) == 0
    assert baseline([text_only, *runs]) == 1
    assert baseline([make_run("a")]) is None
    assert baseline([make_run("a"), text_only]) is None
    text_only = replace(make_run("text-only", 0.9), text_only=True)  # and is never the best
    assert rows([make_run("a", 0.2), text_only, make_run("b", 0.4)])[0].best == {2}
    assert rows([make_run("a", 0.2), text_only])[0].best == frozenset()
    with refused("'a' twice"):
        check_runs([make_run("a"), make_run("a")])
