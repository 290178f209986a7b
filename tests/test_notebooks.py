"""docs/notebooks: every notebook runs top to bottom, on tiny data; its outputs are small."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.runs import QUIET

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))

pytestmark = QUIET


def sources(path: Path, kind: str = "code") -> list[str]:
    """The cells of a kind, in their order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_linked_and_has_text_and_code_and_small_outputs(notebook):
    text = notebook.read_text(encoding="utf-8")
    assert sources(notebook, "markdown")
    assert len(text) < 50_000
    shown = []
    for cell in json.loads(text)["cells"]:
        assert cell["metadata"] == {}
        for output in cell.get("outputs", ()):
            # The page shows what a cell prints and pictures; warnings of a machine are left out.
            shown += output.get("data", [output.get("name")])
    assert {"image/jpeg", "stdout"} <= {*shown} <= {"image/jpeg", "stdout", "text/plain"}
    assert re.findall(r"/(?:home|root|Users|tmp|work)/", text) == []
    link = notebook.relative_to(ROOT / "docs").as_posix()
    assert any(f"({link})" in page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))


def test_the_binding_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLMTUNE_SIZE", "tiny")
    monkeypatch.setattr(sys, "argv", ["notebook"])
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(sources(ROOT / "docs/notebooks/binding.ipynb")):
        exec(compile(source, f"cell {number}", "exec"), names)
    assert names["trainer"].global_step == 2
    assert names["before"].keys() == names["after"].keys() == {"seen", "unseen"}
    assert isinstance(names["side_by_side"]([names["item"].images[0].path]), Image.Image)
    printed = capsys.readouterr().out
    assert len(re.findall(r"% before, \d+ % after", printed)) == 2
    scored = re.findall(r"(?m)^ *-?[\d.]+  (.+)$", printed)
    assert {"a green torus", *names["item"].texts} <= {*scored}
