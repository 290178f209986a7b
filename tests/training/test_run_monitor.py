import csv
import math

import pytest
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import CSVLogger

from tests.runs import QUIET, fit, module
from vlmtune.training.run_monitor import RunMonitor

pytestmark = QUIET


class Norms(Callback):
    """The norm of all gradients, added up weight by weight, before they are clipped."""

    def __init__(self):
        self.norms = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        squares = [float(p.grad.double().square().sum()) for p in pl_module.parameters()
                   if p.grad is not None]  # fmt: skip
        self.norms.append(math.sqrt(sum(squares)))


def test_rate_norm_and_throughput_are_logged(model_folder, shards, tmp_path):
    norms, logger = Norms(), CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    callbacks = (norms, RunMonitor())
    clipped = {"gradient_clip_val": 1e-3, "log_every_n_steps": 2, "logger": logger}
    _, watch = fit(module(model_folder), shards, tmp_path, 6, callbacks, **clipped)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/gradient_norm"]]
    assert [int(row["step"]) for row in rows] == [2, 4, 6]
    got = [float(row["train/gradient_norm"]) for row in rows]
    assert got == pytest.approx([norms.norms[i] for i in (1, 3, 5)], rel=1e-4)
    assert [float(row["train/lr"]) for row in rows] == pytest.approx(watch.rates[1::2])
    assert all(float(row["train/samples_per_second"]) > 0 for row in rows)
