"""The bar of a run, as a terminal shows it."""

import io
import re
import sys

import pytest
from rich.console import Console

from tests.runs import QUIET, fit, module
from vlmtune.cli.run_progress import RunProgress
from vlmtune.storage import progress
from vlmtune.training.benchmark_callback import BenchmarkCallback

pytestmark = QUIET


@pytest.fixture
def screen(monkeypatch):
    """What a terminal of 120 columns receives, without its control codes."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "CONSOLE", console)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    return lambda: re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def run(made, shards, folder, steps=5, *more, **options):
    bar = RunProgress()
    given = {"enable_progress_bar": True, "logger": False, **options}
    return fit(made, shards, folder, steps, (bar, *more), **given)


def test_bars_count_the_steps_of_the_run_and_name_what_else_runs(
    model_folder, shards, tmp_path, screen, cola
):
    evaluation = BenchmarkCallback([cola("one"), cola("other")], every_n_epochs=0, every_n_steps=2)
    # Three steps are an epoch.
    run(module(model_folder), shards, tmp_path, 5, evaluation, val=True)
    shown = screen()
    for part in ("training", "validating", "one: scoring", "other: scoring"):
        assert part in shown
    assert "5/5" in shown
    assert re.search(r"loss \d", shown)
    assert "Epoch" not in shown
    assert "-2" not in shown


def test_a_resumed_run_begins_at_its_step(model_folder, shards, tmp_path, screen):
    run(module(model_folder), shards, tmp_path, 3, save=True)
    before = len(screen())
    (saved,) = tmp_path.glob("*step=3.ckpt")
    run(module(model_folder), shards, tmp_path, 5, resume=saved)
    counts = re.findall(r"(\d+)/5", screen()[before:])
    assert counts[0] == "3"
    assert counts[-1] == "5"


def test_without_a_terminal_nothing_is_shown(model_folder, shards, tmp_path, capfd):
    run(module(model_folder), shards, tmp_path, 3)
    assert capfd.readouterr().err == ""
