"""The GPU benchmark runs whole on a CPU, at tiny sizes, and its table is that of its figures."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.bench.gpu import page

ROOT = Path(__file__).parents[1]


def lines(parts):
    """The names of all figures, but for sizes and the device."""
    names = [figure["name"] for part in parts for figure in part["figures"]]
    return Counter(re.sub(r"\d+", "N", name).replace("cuda", "cpu") for name in names)


@pytest.mark.slow
def test_every_part_ends_with_the_lines_of_a_card(tmp_path):
    from scripts.bench.gpu.__main__ import PARTS

    # The quickstart has tests, and the figures of no other part come from it.
    parts = [part.name for part in PARTS if part.name != "quickstart"]
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "scripts.bench.gpu", "--out", str(out), "--parts", *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    measured = json.loads(out.read_text())["parts"]
    assert [part["part"] for part in measured] == parts
    assert all(part["figures"] for part in measured)
    card = json.loads((ROOT / "docs/results/gpu.json").read_text())
    assert not lines(card["parts"]) - lines(measured)


def test_wheels_are_named_with_their_versions(monkeypatch, capsys):
    from scripts.bench.gpu.__main__ import main

    monkeypatch.setattr(sys, "argv", ["gpu", "--wheels"])
    main()
    assert "webdataset==" in capsys.readouterr().out


def test_the_table_is_that_of_the_figures():
    table = page.table([ROOT / "docs/results/gpu.json"])
    assert table in (ROOT / "docs/costs.md").read_text()
