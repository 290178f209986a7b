from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.conftest import changed
from vlmtune.report import compare_with_first, write_report
from vlmtune.report import flips as module
from vlmtune.report.flips import flips
from vlmtune.report.item_view import margin, together
from vlmtune.results import ItemRow, MetricValue, Result
from vlmtune.types import ImageRef


@pytest.fixture
def run(make_run):
    def made(name, outcomes):
        accuracy = MetricValue(sum(outcomes) / len(outcomes), len(outcomes), 0.5)
        result = Result("cola", "1", "accuracy", {"accuracy": accuracy}, outcomes=outcomes)
        return replace(make_run(name), results=(result,))

    return made


def test_won_and_lost_items_are_shown(item_rows, run, tmp_path):
    """Of three items the first is won, the second lost, the third is as before."""
    old, new = (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)
    runs = [run("old", old), run("new", new)]
    items = {
        "old": {"cola": item_rows(old, (1.0, 2.0, 3.0))},
        "new": {"cola": item_rows(new, (4.0, 5.0, 6.0))},
    }
    page = write_report(tmp_path / "out", runs, items)
    html = page.read_text()
    assert html.count('<figure class="seen">') == 2
    assert '</b> right 0 <span class="scores">1 → 4</span>' in html
    assert "</b> wrong 0</div>" in html
    assert "right 2" not in html

    # An item without a group does not count.
    for left_out, groups in enumerate(((-1, 0, 0), (0, -1, 0))):
        grouped = [changed(one, groups=groups) for one in runs]
        html = write_report(tmp_path / "grouped", grouped, items).read_text()
        assert f"wrong {left_out}</div>" not in html
        assert html.count('<figure class="seen">') == 1

    page = write_report(tmp_path / "out", runs, {"old": items["old"]})
    assert '<span class="scores">1 → ?</span>' in page.read_text()
    page = write_report(tmp_path / "out", runs, {"old": {"cola": items["old"]["cola"][:2]}})
    assert "Won and lost" not in page.read_text()  # of other items


def test_of_a_run_alone_right_and_wrong_items_are_shown(item_rows, run, tmp_path):
    """The third item is neither."""
    outcomes = (1.0, 0.0, 0.5, 1.0)
    items = {"one": {"cola": item_rows(outcomes, (1.0, 2.0, 3.0, 4.0))}}
    right, wrong = flips((), [run("one", outcomes)], items)
    assert (right["verdict"], right["total"], right["good"]) == ("right", 2, True)
    assert (wrong["verdict"], wrong["total"], wrong["good"]) == ("wrong", 1, False)
    assert [item["id"] for item in right["items"]] == ["cola/0", "cola/3"]
    html = write_report(tmp_path / "out", [run("one", outcomes)], items).read_text()
    assert "cola: one was right on 2" in html


def test_groups_share_the_pictures(item_rows, run, monkeypatch):
    """Of 5 + 3 pictures with room for 6, each group gets 3."""
    monkeypatch.setattr(module, "PICTURES", 6)
    new = (1.0,) * 5 + (0.0,) * 3
    runs = [run("old", tuple(1 - x for x in new)), run("new", new)]
    groups = flips(compare_with_first(runs), runs, {"new": {"cola": item_rows(new, new)}})
    assert [(group["total"], len(group["items"])) for group in groups] == [(5, 3), (3, 3)]


def test_margins(item_rows, run):
    """From 1 - 0.5 to 0.25 - 0.75 the margin falls by 1."""
    (before,), (after,) = item_rows((1.0,), (1.0,), 0.5), item_rows((0.0,), (0.25,), 0.75)
    runs = [run("old", (1.0, 1.0)), run("new", (0.0, 1.0))]
    items = {"old": {"cola": (before, before)}, "new": {"cola": (after, before)}}
    (lost,) = flips(compare_with_first(runs), runs, items)
    assert lost["items"][0]["gain"] == -1.0
    assert margin(before) == 0.5
    assert margin(item_rows((1.0,), (1.0,))[0]) is None  # the false caption has no score
    assert margin(ItemRow("a", "b", 1.0)) is None
    two = replace(before, images=before.images * 2, true=((True, False), (False, True)))
    assert margin(replace(two, scores=((1.0, 0.5), (0.75, 0.5)))) == (0.5 - 0.25) / 2
    # Of two true captions the lower one counts, of the true images of a query the best.
    several = replace(before, captions=("x", "y", "z"), true=((True, True, False),))
    several = replace(several, scores=((1.0, 0.5, 0.25),))
    assert margin(several) == 0.25
    assert margin(replace(several, rank=1)) == 0.75


def query(outcome, rank, *listed, part="cola"):
    """The row of a caption whose images are given as (name, true, score), best first."""
    images = tuple(ImageRef(Path(name)) for name, _, _ in listed)
    true = tuple((fits,) for _, fits, _ in listed)
    scores = tuple((score,) for _, _, score in listed)
    return ItemRow(f"{part}/0", part, outcome, images, ("a cat",), true, scores, rank)


def test_the_images_of_a_query_are_those_of_both_runs(run):
    """Image b was first before; image c is the best false one now, its score before is unknown."""
    old = query(0.25, 4, ("b.png", False, 0.5), ("a.png", True, 0.25))
    new = query(1.0, 1, ("a.png", True, 0.75), ("c.png", False, 0.5))
    runs = [run("old", (0.25, 0.5)), run("new", (1.0, 0.5))]
    items = {"old": {"cola": (old, old)}, "new": {"cola": (new, new)}}
    (won,) = flips(compare_with_first(runs), runs, items)
    (item,) = won["items"]
    assert item["note"] == "0.250 → 1.000, rank 4 → 1"
    assert item["gain"] == (0.75 - 0.5) - (0.25 - 0.5)
    seen = [(image["name"], image["pairs"][0]) for image in item["images"]]
    assert [(name, pair["true"], pair["scores"]) for name, pair in seen] == [
        ("b.png", False, "0.5 → ?"),
        ("a.png", True, "0.25 → 0.75"),
        ("c.png", False, "? → 0.5"),
    ]
    alone = query(0.0, 2, ("c.png", False, 0.5))  # lists no true image
    assert [row.true for row in together([old, alone])] == [((False,), (True,), (False,))] * 2


def test_queries_that_the_metric_does_not_count_are_shown_and_right_if_the_first_is_true(run):
    """The caption is as before; the query of the other part is lost."""
    same, part = query(1.0, 1, ("a.png", True, 1.0)), "cola/image_to_text"
    before = query(1.0, 1, ("a.png", True, 1.0), part=part)
    after = query(0.0, 2, ("b.png", False, 2.0), ("a.png", True, 1.0), part=part)
    runs = [run("old", (1.0,)), run("new", (1.0,))]
    items = {"old": {"cola": (same,), part: (before,)}, "new": {"cola": (same,), part: (after,)}}
    (lost,) = flips(compare_with_first(runs), runs, items)
    assert (lost["title"], lost["verdict"], lost["total"]) == ("cola, image to text", "lost", 1)
    titles = [group["title"] for group in flips((), runs[1:], {"new": items["new"]})]
    assert titles == ["cola", "cola, image to text"]
    items["old"][part] = ()
    assert flips(compare_with_first(runs), runs, items) == []
    rows = (query(0.5, 1, ("a.png", True, 1.0)), query(0.5, 2, ("a.png", True, 1.0)))
    right, wrong = flips((), [run("one", (0.5, 0.5))], {"one": {"cola": rows}})
    assert (right["verdict"], wrong["verdict"]) == ("right", "wrong")
    assert right["items"][0]["note"] == "0.500, rank 1"
