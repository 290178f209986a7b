"""From an empty folder to a report: `vlmtune download`, then `vlmtune evaluate`.

The sources are those that come with vlmtune, but for sizes and checksums: the mirror has files of
the same layouts with few items.
"""

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer
from tests.forks import command, status
from tests.sources.conftest import content
from tests.sources.test_layouts import lay_out_fixture, serve_all
from tests.tiny import write_model
from vlmtune.cli.main import main
from vlmtune.sources.order import orders

NAMES = ["cola_multi", "sugar_crepe_pp", "aro", "crepe_systematicity", "pug_spar"]


def publish_all(server: FaultyServer) -> None:
    """Puts the files of all benchmarks of the journey onto the mirror."""
    for name in NAMES:
        lay_out_fixture(name)
    for order in orders(NAMES):
        serve_all(server, order.name)


DOWNLOAD = ("download", *NAMES, "--accept", "pug_spar")


@pytest.mark.slow
def test_two_commands_lead_from_an_empty_folder_to_a_report(mirror, tmp_path, capsys):
    publish_all(mirror)
    model = str(write_model(tmp_path / "model", vocabulary=False))
    for words in (DOWNLOAD, ("evaluate", "--model", model, "--benchmarks", *NAMES)):
        assert main([*words]) == 0, capsys.readouterr().err
    (report,) = Path("runs/evaluate").glob("*/report.json")
    measured = json.loads(report.read_text())
    assert len(measured["results"]) >= len(NAMES)


@pytest.mark.slow
def test_a_download_killed_at_any_moment_ends_in_the_same_bytes(mirror, tmp_path, monkeypatch):
    publish_all(mirror)
    mirror.pause = 0.02
    log = tmp_path / "log.txt"
    began = time.monotonic()
    assert status(command(*DOWNLOAD, "--data-root", "whole", log=log)) == 0, log.read_text()
    whole = time.monotonic() - began
    draw, killed = random.Random(0), 0
    for number in range(10):
        monkeypatch.setenv("VLMTUNE_DATA", f"data{number % 3}")
        started = command(*DOWNLOAD, log=log)
        if status(started, draw.uniform(0.0, whole)) is None:
            started.kill()
            killed += status(started) == -signal.SIGKILL
    assert killed > 0
    for number in range(3):
        root = f"data{number}"
        assert status(command(*DOWNLOAD, "--data-root", root, log=log)) == 0, log.read_text()
        assert content(Path(root)) == content(Path("whole"))
