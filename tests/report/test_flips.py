from dataclasses import replace

import pytest
from PIL import Image

from vlmtune.metrics.value import MetricValue
from vlmtune.report import flips as module
from vlmtune.report.differences import compare_with_first
from vlmtune.report.flips import flips, margin
from vlmtune.report.html import write_report
from vlmtune.report.item_row import ItemRow
from vlmtune.report.result import Result
from vlmtune.types import ImageRef


@pytest.fixture
def rows(tmp_path):
    """Items of an image with a true and a false caption, which has a score if one is given."""
    Image.new("RGB", (20, 10), "red").save(tmp_path / "a.png")

    def made(outcomes, scores, false=None):
        return tuple(
            ItemRow(
                f"cola/{i}",
                "cola",
                outcome,
                (ImageRef(tmp_path / "a.png"),),
                (f"right {i}", f"wrong {i}"),
                ((True, False),),
                ((score, false),),
            )
            for i, (outcome, score) in enumerate(zip(outcomes, scores, strict=True))
        )

    return made


@pytest.fixture
def run(make_run):
    def made(name, outcomes):
        accuracy = MetricValue(sum(outcomes) / len(outcomes), len(outcomes), 0.5)
        result = Result("cola", "1", "accuracy", {"accuracy": accuracy}, outcomes=outcomes)
        return replace(make_run(name), results=(result,))

    return made


def test_won_and_lost_items_are_shown(rows, run, tmp_path):
    """Of three items the first is won, the second lost, the third is as before."""
    old, new = (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)
    runs = [run("old", old), run("new", new)]
    items = {
        "old": {"cola": rows(old, (1.0, 2.0, 3.0))},
        "new": {"cola": rows(new, (4.0, 5.0, 6.0))},
    }
    page = write_report(tmp_path / "out", runs, items)
    text = (tmp_path / "out/report.md").read_text()
    won = "### cola, new against old: won 1\n\n- cola/0: ✓ right 0 (1 → 4); ✗ wrong 0\n"
    lost = "### cola, new against old: lost 1\n\n- cola/1: ✓ right 1 (2 → 5); ✗ wrong 1\n"
    assert won in text
    assert lost in text
    assert "right 2" not in text
    html = page.read_text()
    assert html.count('<figure class="seen">') == 2
    assert '</b> right 0 <span class="scores">1 → 4</span>' in html
    assert "</b> wrong 0</div>" in html

    write_report(tmp_path / "out", runs, {"old": items["old"]})
    assert "✓ right 0 (1 → ?)" in (tmp_path / "out/report.md").read_text()
    write_report(tmp_path / "out", runs, {"old": {"cola": items["old"]["cola"][:2]}})
    assert "Won and lost" not in (tmp_path / "out/report.md").read_text()  # of other items


def test_of_a_run_alone_right_and_wrong_items_are_shown(rows, run, tmp_path):
    """The third item is neither."""
    outcomes = (1.0, 0.0, 0.5, 1.0)
    items = {"one": {"cola": rows(outcomes, (1.0, 2.0, 3.0, 4.0))}}
    right, wrong = flips((), [run("one", outcomes)], items)
    assert (right["verdict"], right["total"], right["good"]) == ("right", 2, True)
    assert (wrong["verdict"], wrong["total"], wrong["good"]) == ("wrong", 1, False)
    assert [item["id"] for item in right["items"]] == ["cola/0", "cola/3"]
    html = write_report(tmp_path / "out", [run("one", outcomes)], items).read_text()
    assert "cola: one was right on 2" in html
    text = (tmp_path / "out/report.md").read_text()
    assert "## Right and wrong items\n\n### cola, one: right 2\n\n- cola/0: ✓ right 0 (1);" in text


def test_groups_share_the_pictures(rows, run, monkeypatch):
    """Of 5 + 3 pictures with room for 6, each group gets 3."""
    monkeypatch.setattr(module, "PICTURES", 6)
    new = (1.0,) * 5 + (0.0,) * 3
    runs = [run("old", tuple(1 - x for x in new)), run("new", new)]
    groups = flips(compare_with_first(runs), runs, {"new": {"cola": rows(new, new)}})
    assert [(group["total"], len(group["items"])) for group in groups] == [(5, 3), (3, 3)]
    monkeypatch.setattr(module, "PICTURES", 0)
    groups = flips(compare_with_first(runs), runs, {"new": {"cola": rows(new, new)}})
    assert [len(group["items"]) for group in groups] == [1, 1]


def test_margins(rows, run):
    """From 1 - 0.5 to 0.25 - 0.75 the margin falls by 1."""
    (before,), (after,) = rows((1.0,), (1.0,), 0.5), rows((0.0,), (0.25,), 0.75)
    runs = [run("old", (1.0, 1.0)), run("new", (0.0, 1.0))]
    items = {"old": {"cola": (before, before)}, "new": {"cola": (after, before)}}
    (lost,) = flips(compare_with_first(runs), runs, items)
    assert lost["items"][0]["gain"] == -1.0
    assert margin(before) == 0.5
    assert margin(rows((1.0,), (1.0,))[0]) is None  # the false caption has no score
    assert margin(ItemRow("a", "b", 1.0)) is None
    two = replace(before, images=before.images * 2, true=((True, False), (False, True)))
    assert margin(replace(two, scores=((1.0, 0.5), (0.75, 0.5)))) == (0.5 - 0.25) / 2
