from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.refusals import refused
from tests.report.conftest import changed
from vlmtune.cli.main import main
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.metrics.intervals import bootstrap_mean
from vlmtune.report.items_file import write_items
from vlmtune.report.items_run import run_of_items
from vlmtune.results import ItemRow, MetricValue, Result
from vlmtune.results.result import WordMaps
from vlmtune.types import ImageRef


@pytest.fixture
def mine(make_run):
    """A run with four items, of which the last two share an image and the first is wrong."""
    outcomes = (0.0, 1.0, 1.0, 1.0)
    metrics = {"accuracy": MetricValue(0.75, 4, 0.25)}
    result = Result("cola", "1", "accuracy", metrics, outcomes=outcomes, clusters=(0, 1, 2, 2))
    return replace(make_run("mine"), results=(result,))


def rows(outcomes, caption="a dog", ids=None):
    ids = ids or [f"cola/{i}" for i in range(len(outcomes))]
    image = ImageRef(Path("a.png"))
    return tuple(
        ItemRow(one, "cola", outcome, (image,), (caption,), ((True,),), ((None,),))
        for one, outcome in zip(ids, outcomes, strict=True)
    )


def of_table(theirs, *others):
    """The run of a table of items, beside others that have none."""
    run, _, _ = run_of_items(Path("t.csv"), {"cola": theirs}, [(one, {}) for one in others])
    return run


def test_the_same_items_in_another_order_are_compared_and_means_over_groups_stay(mine):
    theirs = rows((1.0, 1.0, 0.0, 1.0))[::-1]
    path = Path("theirs.csv")
    others = [(mine, {"cola": rows([0.0] * 4)})]
    run, items, apart = run_of_items(path, {"cola": theirs}, others)
    (result,) = run.results
    assert result.outcomes == (1.0, 1.0, 0.0, 1.0)
    assert [row.id for row in items["cola"]] == [f"cola/{i}" for i in range(4)]
    assert (result.version, result.clusters) == ("1", (0, 1, 2, 2))
    metric = result.metrics["accuracy"]
    assert (metric.value, metric.n, metric.chance) == (0.75, 4, 0.25)
    assert metric.low is not None
    assert metric.low < 0.75
    assert (run.name, apart, run.provenance.known) == ("theirs", (), False)
    # Groups of weight 1 and 3: (1 * 0.5 + 3 * 1) / 4.
    grouped = changed(mine, groups=(0, 0, 1, -1), group_weights=(1.0, 3.0))
    theirs = rows((1.0, 0.0, 1.0, 0.0))
    assert of_table(theirs, grouped).metric("cola", "accuracy").value == 0.875
    # The formula of the interval is of a plain mean.
    metric = of_table(theirs, changed(grouped, degree=2)).metric("cola", "accuracy")
    assert (metric.value, metric.low, metric.high) == (0.875, None, None)


def test_equal_grades_have_the_same_interval_and_nothing_else_of_the_other_run(mine):
    grades = (0.25, 0.5, 0.5, 0.75)
    metric = bootstrap_mean(torch.tensor(grades, dtype=torch.float64), 0.25)
    maps = WordMaps(
        "a dog", ImageRef(Path("a.png")), ("dog",), ("1",), 1, (0.0, 0.0, 1.0, 1.0), True
    )
    result = Result("cola", "1", "map", {"map": metric}, outcomes=grades, readings=(maps,))
    graded = replace(mine, results=(replace(result, runs=(grades,)),))
    assert of_table(rows(grades), graded).results == (replace(result, readings=()),)
    # Grades of items that share images are not resampled one by one.
    shared = of_table(rows(grades), changed(graded, clusters=(0, 0, 1, 1)))
    values = torch.tensor(grades, dtype=torch.float64)
    metric = cluster_robust_mean(values, torch.tensor([0, 0, 1, 1]), 0.25)
    assert shared.metric("cola", "map") == metric


@pytest.mark.parametrize(
    ("theirs", "known"),
    [
        (rows((1.0, 0.0, 1.0)), {}),
        (rows((1.0,) * 4, ids=list("abcd")), {}),
        (rows((1.0,) * 4, "a cat"), {"cola": rows((0.0,) * 4)}),
    ],
)
def test_other_items_stand_apart(mine, theirs, known):
    run, _, apart = run_of_items(Path("x/items.csv"), {"cola": theirs}, [(mine, known)])
    assert apart == ("cola",)
    assert run.name == "x"
    (result,) = run.results
    assert result.version == "items"
    outcomes = [row.outcome for row in theirs]
    assert result.metrics["accuracy"].value == pytest.approx(sum(outcomes) / len(outcomes))
    assert len(set(result.clusters)) == 1  # all of one image


def test_graded_outcomes_have_no_accuracy_and_items_different_ids():
    assert of_table(rows((0.5, 0.25))).metric("cola", "outcome").value == 0.375
    assert of_table(rows((0.5, -0.25))).metric("cola", "outcome").unit == "cosine"
    # Of three items the first, with two images, shares one with the last.
    first, second, third = rows((1.0, 0.0, 1.0))
    images = [ImageRef(Path(f"{name}.png")) for name in "abc"]
    first = replace(first, images=tuple(images[:2]), true=((True,),) * 2, scores=((None,),) * 2)
    listed = (first, replace(second, images=(images[2],)), replace(third, images=(images[1],)))
    assert of_table(listed).results[0].clusters == (0, 1, 0)
    with refused("expected items in t.csv, got none"):
        run_of_items(Path("t.csv"), {}, [])
    with refused("expected items of different ids in t.csv"):
        run_of_items(Path("t.csv"), {"cola": rows((1.0, 1.0), ids=["a", "a"])}, [])


def test_report_reads_items_of_another_tool(mine, tmp_path, capsys):
    """The first item of four is won, none is lost; then the same file with other captions."""
    mine.save(tmp_path / "mine/report.json")
    write_items(tmp_path / "mine/items.csv", rows(mine.results[0].outcomes))
    write_items(tmp_path / "theirs.jsonl", rows((1.0,) * 4))
    out = ["--out", str(tmp_path / "out")]
    runs = [str(tmp_path / "mine"), str(tmp_path / "theirs.jsonl")]
    assert main(["report", *runs, *out]) == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "cola: theirs won 1<" in page
    assert "theirs lost" not in page
    text = (tmp_path / "out/report.md").read_text()
    assert "scores of theirs.jsonl ()" not in text
    assert "- backbone: unknown: scores of theirs.jsonl\n" in text
    assert "unknown: scores of theirs.jsonl" in page
    assert capsys.readouterr().err == ""

    write_items(tmp_path / "theirs.jsonl", rows((1.0,) * 4, "a cat"))
    # A probe of the same name has no items, and hides those of the evaluation from nobody.
    changed(mine, benchmark="style").save(tmp_path / "probed/report.json")
    assert main(["report", *reversed(runs), str(tmp_path / "probed"), *out]) == 0
    assert "theirs.jsonl has other items of cola" in capsys.readouterr().err
    assert "Won and lost" not in (tmp_path / "out/report.html").read_text()


def test_items_of_an_earlier_evaluation_are_left_out(mine, tmp_path, capsys):
    """The folder was measured again without --items: one item of four is wrong, not three."""
    mine.save(tmp_path / "mine/report.json")
    arguments = ["report", str(tmp_path / "mine"), "--out", str(tmp_path / "out")]
    saved = (0.0, 1.0, 1.0, 0.9999999)  # by a spreadsheet
    for outcomes, is_stale in ((saved, False), ((1.0, 0.0, 0.0, 0.0), True)):
        write_items(tmp_path / "mine/items.jsonl", rows(outcomes))
        assert main(arguments) == 0
        page = (tmp_path / "out/report.html").read_text()
        assert ("mine was wrong on 1<" in page) is not is_stale
        assert ("Right and wrong items" in page) is not is_stale
        assert ("is of another evaluation than" in capsys.readouterr().err) is is_stale


def test_queries_share_their_true_image_and_other_parts_are_no_benchmark(mine):
    """Of three captions two are true of image a; c is a candidate of all three."""

    def query(i, outcome, own, part="photos"):
        images = (ImageRef(Path("c.png")), ImageRef(Path(own)))
        true, scores = ((False,), (True,)), ((2.0,), (1.0,))
        return ItemRow(f"{part}/{i}", part, outcome, images, ("x",), true, scores, 2)

    photos = (query(0, 1.0, "a.png"), query(1, 0.0, "a.png"), query(2, 1.0, "b.png"))
    part = (query(0, 1.0, "a.png", "photos/image_to_text"),)
    given = {"photos": photos, "photos/image_to_text": part}
    run, items, apart = run_of_items(Path("t.csv"), given, [(mine, {})])
    (result,) = run.results
    assert (result.benchmark, result.clusters) == ("photos", (0, 0, 1))
    assert (items, apart) == (given, ())
