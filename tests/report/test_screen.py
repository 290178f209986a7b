"""Tables of runs on terminals of several widths, and in a pipe."""

import re

import pytest

from vlmtune.report.screen import show, show_alphas

NAMES = ["clip", "mm-adapter", "grounded-words-mixture", "lora", "text-map", "full-finetuning"]
INTERVAL = re.compile(r"\d+\.\d % \[\d+\.\d–\d+\.\d\]")


@pytest.fixture
def shown(make_run, monkeypatch, capsys):
    """Returns a function that shows runs on a terminal of some columns, or None for a pipe."""

    def lines(count, columns, names=NAMES):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
            monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("NO_COLOR", "1")
        show([make_run(name, 0.1 * i) for i, name in enumerate(names[:count], 1)], "title")
        return re.sub(r"\x1b\[[01]?m", "", capsys.readouterr().out).splitlines()  # bold

    return lines


@pytest.mark.parametrize("columns", [70, 80, 110, 160, None])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_no_number_is_cut(shown, count, columns):
    lines = shown(count, columns)
    assert "…" not in "".join(lines)
    assert len(INTERVAL.findall("\n".join(lines))) == 2 * count
    assert all(len(line) <= columns for line in lines if columns)


def test_runs_stand_side_by_side_where_they_fit(shown):
    assert any("clip" in line and "mm-adapter" in line for line in shown(3, 160))
    narrow = shown(3, 80)
    assert not any("clip" in line and "mm-adapter" in line for line in narrow)
    row = next(i for i, line in enumerate(narrow) if "cola_multi accuracy ↑" in line)
    assert narrow[row].split()[-3:] == ["210", "25.0", "%"]
    assert narrow[row + 2].split() == ["mm-adapter", "20.0", "%", "[15.0–25.0]"]


@pytest.mark.parametrize("columns", [100, 160, None])
def test_a_name_cannot_command_a_terminal(shown, columns):
    out = "\n".join(shown(2, columns, ["\x1b[31mred\x1b]0;owned\x07", "clip"]))
    assert "\\x1b[31mred\\x1b]0;owned\\x07" in out
    assert not {"\x1b", "\x07"} & {*out}


def test_a_pipe_has_one_column_a_run(shown):
    heads = [line for line in shown(6, None) if "benchmark" in line]
    assert [[name in line for name in NAMES] for line in heads] == [[True] * 6]


def test_a_mean_over_fewer_benchmarks_is_not_shown_beside_the_others(make_run, capsys):
    """The second alpha lacks the number of the second benchmark."""
    whole = make_run("mm", 0.4).results
    show_alphas({0.0: whole, 1.0: whole[:1]})
    lines = capsys.readouterr().out.splitlines()
    cells = [re.findall(r"[\d.]+ %|–", line) for line in lines if line.startswith(("| 0", "| 1"))]
    assert cells == [["30.0 %", "40.0 %", "20.0 %", "–"], ["–", "40.0 %", "–", "–"]]
