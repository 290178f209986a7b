"""`vlmtune leaderboard`: a killed run continues, and only what changed is measured again."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from tests.refusals import refused
from tests.runs import QUIET
from tests.tiny import cola_plugin, plugin, write_cola
from vlmtune.cli.commands import command_parser
from vlmtune.cli.leaderboard import run
from vlmtune.config import stems
from vlmtune.report import leaderboard as page
from vlmtune.report.run_report import RunReport

pytestmark = QUIET
SCENES = ("published:scenes/prompts", "published:scenes/grounded-words")


@pytest.fixture
def board(tmp_path, monkeypatch, model_folder):
    """Returns a function that makes a leaderboard in a folder, of three models by default."""
    monkeypatch.chdir(tmp_path)
    path = write_cola(tmp_path / "cola")
    classes = path.parent / "classes"
    for name in ("red", "blue"):
        (classes / name).mkdir(parents=True)
        (path.parent / f"{name}-green-cube.png").rename(classes / name / "1.png")
    colours = plugin(
        "benchmarks.zero_shot_classification.ZeroShotClassification",
        **{"images": str(classes), "templates": ["a {} cube"], "name": "colours"},
    )
    return path
