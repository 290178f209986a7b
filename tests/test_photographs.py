"""Real photographs, from items to a report and to a search, as a person takes the commands.

They are beside the project and never in it: 43 of COCO val2017 with the items that use them.
"""

import json
import math
from pathlib import Path

import pytest

from vlmtune.cli.main import main

PHOTOS = Path(__file__).parents[1].parent / "shared/data/photos"
MODEL = ["--model", "Tiny-VL", "--pretrained", "random"]  # reads any words
BENCHMARKS = f"""
- class_path: vlmtune.benchmarks.sugar_crepe.SugarCrepe
  init_args: {{path: {PHOTOS}/sugar-crepe, images: {PHOTOS}/images}}
- class_path: vlmtune.benchmarks.sugar_crepe_pp.SugarCrepePP
  init_args: {{path: {PHOTOS}/sugar-crepe-pp, images: {PHOTOS}/images}}
"""
ITEMS = {"sugar_crepe": 227, "sugar_crepe_pp": 146}


@pytest.mark.slow
@pytest.mark.skipif(not PHOTOS.is_dir(), reason=f"the photographs are not in {PHOTOS}")
def test_photographs(tiny_vl, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("photos.yaml").write_text(BENCHMARKS)
    measure = ["--benchmarks", "photos.yaml", "--device", "cpu", "--out", "run"]
    assert main(["evaluate", *MODEL, *measure, "--items", "run/items.jsonl"]) == 0
    results = json.loads(Path("run/report.json").read_text())["results"]
    assert {one["benchmark"]: one["metrics"]["accuracy"]["n"] for one in results} == ITEMS
    rows = [json.loads(line) for line in Path("run/items.jsonl").read_text().splitlines()]
    assert len(rows) == sum(ITEMS.values())
    for row in rows:
        assert Path(row["files"][0]).is_file()
        assert all(math.isfinite(score) for score in row["scores"][0])
        true, *false = zip(row["scores"][0], row["true"][0], strict=True)
        best_false = max(score for score, is_true in (true, *false) if not is_true)
        worst_true = min(score for score, is_true in (true, *false) if is_true)
        assert row["right"] == (worst_true > best_false)

    assert main(["report", "run", "--out", "again"]) == 0
    page = Path("again/report.html").read_text()
    assert "data:image/jpeg;base64" in page

    assert main(["index", str(PHOTOS / "images"), *MODEL, "--out", "index"]) == 0
    capsys.readouterr()
    assert main(["search", "index", rows[0]["captions"][0], "--top", "3"]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if ".jpg" in line]
    assert len(found) == 3
