"""A run that is killed at any moment is resumed to the same end, to the last bit."""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.forks import forked, status
from tests.runs import QUIET
from tests.tiny import cola_plugin, fit_config, keeping, plugin, write_cola
from vlmtune.cli.main import main

pytestmark = QUIET

STEPS = 60  # five epochs of twelve records


def random_run(folder: Path, model: Path, shards: Path, cola: Path) -> Path:
    """A run with dropout and chosen pairs, that draws random numbers in every step."""
    place = str(folder / "run/checkpoints")
    callbacks = [
        plugin(
            "training.benchmark_callback.BenchmarkCallback",
            benchmarks=[cola_plugin(cola, name="tiny")],
            every_n_epochs=2,
            log_every_n_steps=1,
        ),
        keeping(dirpath=place, every_n_train_steps=5, save_last=True),
    ]
    changes = {
        "adapter": plugin("adapters.mm_adapter.MMAdapter", heads=2, hidden=2, dropout=0.1),
        "objectives": [plugin("objectives.pair_bce.PairBCE")],
        "pairs": plugin("pairs.mixed_pairs.MixedPairs", positives=1),
        "store": str(folder / "store"),
    }
    data, trainer = {"batch_size": 1, "num_workers": 0}, {"max_steps": STEPS}
    trainer["callbacks"] = callbacks
    return fit_config(folder, model, shards, model=changes, data=data, trainer=trainer)


def fit_until(config: Path, trace: Path, delay: float) -> int:
    """Runs until `trace` is there and `delay` seconds more, of this process and not of a clock."""

    def end() -> None:
        while not trace.exists():
            time.sleep(0.002)
        limit = time.process_time() + delay
        while time.process_time() < limit:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    return main(["fit", "--config", str(config)])


def kill(config: Path, trace: Path, delay: float) -> None:
    log = config.parent / "stderr"
    run = forked(fit_until, config, trace, delay, log=log)
    assert status(run, 600) == -signal.SIGKILL, f"it was not killed: {log.read_text()}"


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_end(
    tmp_path, model_folder, shards, monkeypatch, capsys
):
    cola = write_cola(tmp_path / "cola")
    folders = (tmp_path / name for name in ("whole", "killed"))
    whole, killed = (random_run(folder, model_folder, shards, cola) for folder in folders)
    assert main(["fit", "--config", str(whole)]) == 0, capsys.readouterr().err

    before = {path: path.read_bytes() for path in shards.iterdir()}
    folder = killed.parent / "run"
    last = folder / "checkpoints" / "last.ckpt"
    draw = random.SystemRandom().random
    delays = (0.1 * draw(), 0.2 * draw())
    kill(killed, killed.parent / "store", delays[0])  # while it fills the store, or soon after
    kill(killed, last, delays[1])
    assert not (folder / "report.json").exists()
    step = torch.load(last, weights_only=True)["global_step"]
    assert 0 < step < STEPS
    for path in folder.rglob("*.ckpt"):  # no half of a checkpoint, whatever its name
        assert torch.load(path, weights_only=True)["state_dict"]

    resumed = ["fit", "--config", str(killed), "--ckpt_path", str(last)]
    assert main(resumed) == 0, f"{delays}: {capsys.readouterr().err}"
    ends = [config.parent / "run" for config in (whole, killed)]
    last = [torch.load(end / "checkpoints" / "last.ckpt", weights_only=True) for end in ends]
    states = [checkpoint["state_dict"] for checkpoint in last]
    assert states[0].keys() == states[1].keys()
    assert all(states[0][name].equal(states[1][name]) for name in states[0]), delays
    reports = [json.loads((end / "report.json").read_text()) for end in ends]
    losses = [report["curves"]["train/loss"] for report in reports]
    assert len(losses[0]) == STEPS
    assert losses[0] == losses[1], delays
    assert reports[0]["results"] == reports[1]["results"]
    assert before == {path: path.read_bytes() for path in shards.iterdir()}
