"""docs/examples.md: every block runs, in the order of the page, in an empty folder."""

import re
import shlex
from pathlib import Path

import pytest

from tests.runs import QUIET
from vlmtune.cli.main import main

PAGE = (Path(__file__).parents[1] / "docs/examples.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- journey -->\n```(\w+)\n(.*?)```", PAGE, re.DOTALL)
JOURNEYS = ["Try", "Train", "Bring", "Measure", "Use", "Understand", "Extend"]

pytestmark = QUIET


def test_the_page_has_a_short_example_of_each_journey():
    sections = re.split(r"(?m)^## ", PAGE)[1:]
    assert [section.split()[0] for section in sections] == JOURNEYS
    assert all("<!-- journey -->" in section for section in sections)
    assert len(BLOCKS) == len(re.findall(r"(?m)^```\w", PAGE))
    for _, content in BLOCKS:
        assert len([line for line in content.splitlines() if line]) <= 22


@pytest.mark.slow
def test_the_blocks_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for language, content in BLOCKS:
        if language == "python":
            exec(compile(content, "docs/examples.md", "exec"), {"__name__": "example"})
            continue
        assert language == "sh"
        for line in content.splitlines():
            program, *words = shlex.split(line)
            assert program == "vlmtune"
            assert main(words) == 0, line
    printed = capsys.readouterr().out
    assert "weights of step 10" in printed
    assert "weights of step 20" in printed
    counts = re.search(r"'captions': (\d+).*'skipped: another split': (\d+)", printed)
    captions, out = map(int, counts.groups())
    assert captions > out > 0
    assert len(re.findall(r"scenes-[\w-]+: \d+% \[\d+%, \d+%\]", printed)) == 2
    assert re.search(r"won: a \w+ \w+ and a \w+ \w+ \| a ", printed)
    assert Path("examples/both/report.html").is_file()
