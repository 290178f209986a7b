import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from vlmtune.config import stems
from vlmtune.metrics.significance import PairedDifference
from vlmtune.report import leaderboard
from vlmtune.report.differences import Comparison
from vlmtune.report.leaderboard import TWIN, Board, Cost, MeasuredModel
from vlmtune.report.pareto import mean_change
from vlmtune.results import MetricValue, Result

N = 12
PUBLISHED = Path(leaderboard.__file__).with_name("published.yaml")


def result(name, right, n=N, **more):
    outcomes = tuple(float(i < right) for i in range(n))
    value = MetricValue(right / n, n, 0.25, 0.0, 1.0, clusters=n)
    return Result(name, "1", "accuracy", {"accuracy": value}, outcomes=outcomes, **more)


@pytest.fixture
def board(make_run):
    """Makes a leaderboard of models, each given by its right items on three benchmarks."""

    def make(**models):
        entries = []
        for name, (one, two, retained) in models.items():
            run = make_run(name, trained=0 if name == "clip" else 9)
            results = (result("one", one), result("two", two))
            results += (result("kept", retained, kind="retained"),)
            spec = {"class_path": "vlmtune.benchmarks.half_truths.HalfTruths"}
            spec["init_args"] = {"prompt": "a {}"}
            origin = replace(run.provenance, config={"benchmarks": {"one": spec}})
            run = replace(run, results=results, provenance=origin)
            entries.append(MeasuredModel(run, Cost(512, 1e6)))
        return Board(entries)

    return make


def test_gains_and_losses_are_means_over_benchmarks(board):
    made = board(clip=(0, 0, 12), probe=(12, 6, 9))
    gained, retained = made.gains[1]
    assert gained.value == pytest.approx(0.75)
    assert retained.value == pytest.approx(-0.25)
    one, two, _ = made.pairs()[0, 1]
    above = two.paired.high - two.paired.difference
    assert (one.paired.difference, one.paired.high) == (1.0, 1.0)  # no model is right more often
    assert gained.high - gained.value == pytest.approx(above / 2)
    below = [test.paired.difference - test.paired.low for test in (one, two)]
    assert gained.value - gained.low == pytest.approx((below[0] ** 2 + below[1] ** 2) ** 0.5 / 2)
    assert made.gains[0] == (None, None)
    assert mean_change([], "compositional") is None
    assert made.points == {0: (0.0, 0.0), 1: pytest.approx((25.0, 75.0))}


def test_less_of_an_error_is_a_gain_and_other_units_have_no_mean():
    def compared(difference, low, high, **more):
        metric = {"m": MetricValue(0.5, 9, **more)}
        paired = PairedDifference(difference, low, high, 0, 0, 9, 0.5, "t")
        return Comparison(1, Result("b", "1", "m", metric), difference, paired, "")

    accuracy = compared(0.2, 0.1, 0.4)
    error = compared(-0.4, -0.5, -0.1, higher_is_better=False)
    rank = compared(-3.0, -4.0, -2.0, higher_is_better=False, unit="rank")
    mean = mean_change([accuracy, error, rank], "compositional")
    assert (mean.value, mean.n) == (pytest.approx(0.3), 2)
    assert mean.value - mean.low == pytest.approx(math.hypot(0.1, 0.3) / 2)
    assert mean.high - mean.value == pytest.approx(math.hypot(0.2, 0.1) / 2)
    unknown = compared(0.2, None, None)
    assert mean_change([accuracy, unknown], "compositional") == MetricValue(0.2, 2)


def test_models_are_ranked_by_their_gain_and_the_front_leaves_out_what_another_model_beats(board):
    made = board(clip=(6, 6, 12), worse=(3, 3, 12), better=(9, 9, 0), same=(6, 6, 12))
    names = [entry.report.name for entry in made.ranked()]
    assert names == ["clip", "better", "same", "worse"]
    first, worse, none = board(clip=(6, 6, 12), worse=(3, 3, 12), none=(0, 0, 0)).entries
    none = replace(none, report=replace(none.report, results=()))
    names = [one.report.name for one in Board([first, none, worse]).ranked()]
    assert names[1:] == ["worse", "none"]
    made = board(clip=(0, 0, 12), probe=(12, 6, 9), worse=(12, 3, 6), lora=(12, 12, 3))
    assert made.front == [0, 1, 3]
    page = made.html()
    assert "(clip, probe, lora)" in page


def test_a_page_without_numbers_says_why_and_names_keep_their_dots(board):
    run = board(clip=(1, 1, 1)).runs[0]
    failed = replace(run, results=(), not_run=(("one", "no words"),))
    alone = Board([MeasuredModel(failed, None)])
    assert "1 model on 0 benchmarks" in alone.html()
    assert alone.markdown().endswith("\n## Not run\n\n- one: no words\n")
    of_two = [MeasuredModel(failed, None), MeasuredModel(replace(run, name="probe"), None)]
    for text in (Board(of_two).html(), Board(of_two).markdown()):
        assert "one (clip): no words" in text
    results = (result("my.reference_set", 3), result(f"one{TWIN}", 6, convention="reference"))
    named = replace(run, results=results)
    text = replace(named, name="text", text_only=True)
    models = [MeasuredModel(named, Cost(64, 1e3)), MeasuredModel(text, None)]
    lines = csv.DictReader(Board(models).csv().splitlines())
    columns = ("text_only", "my.reference_set accuracy", "one (reference) accuracy")
    listed = [[line[name] for name in columns] for line in lines]
    assert listed == [["false", "0.25", "0.5"], ["true", "0.25", "0.5"]]
    row = next(line for line in Board(models).markdown().splitlines() if "| clip |" in line)
    assert row.startswith("| clip | – | – | 0 | 64 | 1000 | ")


def test_each_pair_is_tested_and_both_cells_lead_to_it(board):
    made = board(clip=(0, 0, 12), probe=(12, 6, 9), lora=(12, 12, 0))
    assert list(made.pairs()) == [(0, 1), (0, 2), (1, 2)]
    page = made.html()
    assert page.count('href="#pair-1-3"') == 2
    assert page.count('id="pair-1-3"') == 1
    assert ">▲2 ▼1</a>" in page  # lora against clip, and the other way round
    assert ">▲1 ▼2</a>" in page
    assert "Tests: 9; by chance about one in 20 finds a difference." in page
    assert "One seed each: probe, lora." in page


def test_few_items_prompts_and_means_over_fewer_benchmarks_are_warnings(board):
    def warned(*runs):
        of_runs = Board([MeasuredModel(run, None) for run in runs])
        return [one.text for one in of_runs.warnings()]

    def of_few_items(*results):
        texts = warned(replace(clip, results=results))
        return [text for text in texts if "one of them is" in text]

    texts = [(one.benchmark, one.text) for one in board(clip=(1, 1, 1)).warnings()]
    assert ("one", "its prompt is 'a {}': with another the number is another") in texts
    assert ("two", f"{N} items: one of them is 8.3 points") in texts
    clip, probe = board(clip=(1, 1, 1), probe=(2, 2, 2)).runs
    enough = (result("one", 1, n=100), result("two", 1, n=99))
    assert of_few_items(*enough) == ["99 items: one of them is 1.0 points"]
    # Twelve groups may have any number of items.
    grouped = [replace(one, groups=tuple(range(N))) for one in clip.results]
    assert of_few_items(*grouped) == []
    fewer = replace(probe, results=probe.results[1:])
    assert "its mean is over" not in "".join(warned(clip, fewer))  # no other model has two
    third = replace(probe, name="third")
    assert "its mean is over 1 of 2 compositional benchmarks" in warned(clip, fewer, third)


def test_published_numbers_have_a_source_and_a_column_only_for_the_same_items(board, monkeypatch):
    made = board(clip=(1, 1, 1))
    rows = made.rows["strict"]
    assert {one["column"] for one in made.published(rows)} == {None}
    same = replace(rows[0], cells=(replace(rows[0].first, n=509),))
    (column,) = {one["column"] for one in made.published([same])}
    assert column == 0
    made.rows["strict"] = [same]
    assert "Published, not measured here" in made.html()
    numbers = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    assert {one["benchmark"] for one in numbers} <= set(stems("benchmarks"))
    keys = {"method", "benchmark", "metric", "value", "n", "source"}
    assert all(one.keys() == keys for one in numbers)
    assert all(0 < one["value"] < 100 for one in numbers)
