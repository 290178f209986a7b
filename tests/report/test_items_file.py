import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.refusals import refused
from vlmtune.metrics.value import MetricValue
from vlmtune.report.html import write_report
from vlmtune.report.items_file import read_items, write_items
from vlmtune.report.result import ItemRow, Result
from vlmtune.types import ImageRef


@pytest.fixture
def rows(tmp_path):
    """Three items of an image with a true and a false caption; the second image is a crop."""
    Image.new("RGB", (20, 10), "red").save(tmp_path / "a.png")
    images = [ImageRef(tmp_path / "a.png"), ImageRef(tmp_path / "a.png", (2, 2, 4, 4))]

    def made(outcomes, scores):
        return tuple(
            ItemRow(
                f"cola/{i}",
                "cola",
                outcome,
                (images[i % 2],),
                (f"right {i}", f"wrong {i}"),
                ((True, False),),
                ((score, None),),
            )
            for i, (outcome, score) in enumerate(zip(outcomes, scores, strict=True))
        )

    return made


def test_items_are_read_as_they_were_written(rows, tmp_path):
    written = rows((1.0, 0.0, 0.5), (0.25, 0.5, 0.75))
    other = ItemRow("classes/0", "classes", 1.0)
    write_items(tmp_path / "items.jsonl", [*written, other])
    assert read_items(tmp_path / "items.jsonl") == {"cola": written, "classes": (other,)}
    lines = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "id": "cola/1",
        "benchmark": "cola",
        "outcome": 0.0,
        "images": [{"path": str(tmp_path / "a.png"), "box": [2, 2, 4, 4]}],
        "captions": ["right 1", "wrong 1"],
        "true": [[True, False]],
        "scores": [[0.5, None]],
    }


def test_other_files_are_refused(tmp_path):
    for text in ("[1]\n", "{}\n", "no json\n"):
        (tmp_path / "items.jsonl").write_text(text)
        with refused("items that vlmtune evaluate --items wrote"):
            read_items(tmp_path / "items.jsonl")


def test_won_and_lost_items_are_shown(rows, make_run, tmp_path):
    """Of three items the first is won, the second lost, the third is as before."""

    def run(name, outcomes):
        accuracy = MetricValue(sum(outcomes) / 3, 3, 0.5)
        result = Result("cola", "1", "accuracy", {"accuracy": accuracy}, outcomes=outcomes)
        return replace(make_run(name), results=(result,))

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
    assert html.count('<figure class="thumb">') == 2
    assert "right 0 (1 → 4)" in html

    write_report(tmp_path / "out", runs, {"old": items["old"]})
    assert "✓ right 0 (1 → ?)" in (tmp_path / "out/report.md").read_text()
    write_report(tmp_path / "out", runs, {"old": {"cola": items["old"]["cola"][:2]}})
    assert "Won and lost" not in (tmp_path / "out/report.md").read_text()  # of other items
    assert Path(page).is_file()
