"""What would hang, or take all memory, is refused."""

import os

import pytest

from tests.refusals import refused
from tests.tiny import fit_config
from vlmtune.cli.fit import names_module
from vlmtune.cli.main import main


def test_a_pipe_is_no_config(tmp_path):
    os.mkfifo(tmp_path / "fit.yaml")
    with refused("expected a config in .*, got a pipe or a device: write it to a file"):
        names_module(["--config", str(tmp_path / "fit.yaml")])


@pytest.mark.filterwarnings("ignore")
def test_a_thousand_million_devices_are_refused(tmp_path, model_folder, shards, capsys):
    config = fit_config(tmp_path, model_folder, shards, trainer={"devices": 10**9})
    assert main(["fit", "--config", str(config)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        "vlmtune: error: expected at most 1024 devices on a node, got 1000000000: lower "
        "--trainer.devices"
    )
