import csv
import math
from functools import partial
from pathlib import Path

import pytest
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.precision import MixedPrecision
from torch.amp.grad_scaler import GradScaler
from torch.optim import AdamW

from tests.runs import QUIET, Clock, fit, module
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.data.stream import GroupStream
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training.run_monitor import RunMonitor

pytestmark = QUIET


def logged(logger, column):
    """The rows of a logger's file that have a number in a column."""
    with open(f"{logger.log_dir}/metrics.csv") as file:
        return [row for row in csv.DictReader(file) if row[column]]


class Norms(Callback):
    """The norm of all gradients, added up weight by weight, before they are clipped."""

    def __init__(self):
        self.norms = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        squares = [float(gradient.double().square().sum()) for gradient in gradients]
        self.norms.append(math.sqrt(sum(squares)))


def test_rate_norm_and_throughput_are_logged(model_folder, shards, tmp_path):
    norms, logger = Norms(), CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    callbacks = (norms, RunMonitor())
    clipped = {"gradient_clip_val": 1e-3, "log_every_n_steps": 2, "logger": logger}
    _, watch = fit(module(model_folder), shards, tmp_path, 6, callbacks, **clipped)
    rows = logged(logger, "train/gradient_norm")
    assert [int(row["step"]) for row in rows] == [2, 4, 6]
    got = [float(row["train/gradient_norm"]) for row in rows]
    assert got == pytest.approx([norms.norms[i] for i in (1, 3, 5)], rel=1e-4)
    assert [float(row["train/lr"]) for row in rows] == pytest.approx(watch.rates[1::2])
    for name in ("samples_per_second", "memory_gib", "pairs_per_second", "logit_scale"):
        assert all(float(row[f"train/{name}"]) > 0 for row in rows)
    left = [float(row["train/seconds_left"]) for row in rows]
    assert left[0] > left[2] == 0


def test_every_0_steps_logs_nothing(model_folder, shards, tmp_path):
    logger, monitor = CSVLogger(tmp_path), RunMonitor()
    fit(module(model_folder), shards, tmp_path, 2, (monitor,), log_every_n_steps=0, logger=logger)
    assert monitor.latest == {}
    assert not Path(logger.log_dir, "metrics.csv").exists()


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_does_not_change_the_norm(model_folder, shards, tmp_path, fused):
    """Lightning unscales gradients before the norm is taken; a fused optimizer does it after."""
    got = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", GradScaler("cpu", init_scale=256.0))]):
        logger = CSVLogger(tmp_path / str(len(plugins)), flush_logs_every_n_steps=1)
        options = {"plugins": plugins, "log_every_n_steps": 1, "logger": logger}
        optimizer = partial(AdamW, lr=1e-3, fused=fused)
        made = module(model_folder, LinearProbe(), [InfoNCE()], optimizer=optimizer)
        fit(made, shards, tmp_path, 1, (RunMonitor(),), **options)
        (row,) = logged(logger, "train/gradient_norm")
        got.append(float(row["train/gradient_norm"]))
    assert got[1] == pytest.approx(got[0], rel=0.05)


def test_waiting_is_the_share_of_time_spent_on_fetching(
    model_folder, shards, tmp_path, monkeypatch
):
    clock, read = Clock(monkeypatch), GroupStream.batches

    def slow(*arguments, **options):
        for batch in read(*arguments, **options):
            clock.now += 3.0
            yield batch

    monkeypatch.setattr(GroupStream, "batches", slow)
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    options = {"log_every_n_steps": 3, "logger": logger}
    made = module(model_folder, LinearProbe(learn_scale=True, initial_scale=5.0), [InfoNCE()])
    fit(made, shards, tmp_path, 3, (clock, RunMonitor()), **options)
    (row,) = logged(logger, "train/data_wait_fraction")
    assert float(row["train/data_wait_fraction"]) == pytest.approx(3 * 3 / (3 * 3 + 3))
    assert float(row["train/samples_per_second"]) == pytest.approx(3 * 4 / 12)
    assert row["epoch"] == "0"
    assert float(row["train/logit_scale"]) == pytest.approx(5.0, rel=0.1)
