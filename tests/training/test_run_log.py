"""What a checkpoint says of the run that wrote it, where no benchmark is measured."""

from types import SimpleNamespace

from pytorch_lightning.callbacks import Callback

from tests.runs import QUIET, fit, module
from vlmtune.model import read_checkpoint
from vlmtune.training import run_log
from vlmtune.training.run_log import Origin

pytestmark = QUIET


def test_a_checkpoint_tells_the_time_of_all_its_steps(model_folder, shards, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(run_log, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Steps(Callback):
        def on_train_batch_start(self, *_):
            now[0] += 1

    def trained(steps, resume=None):
        callbacks = (Steps(), Origin())
        fit(module(model_folder), shards, tmp_path, steps, callbacks, save=True, resume=resume)
        return tmp_path / f"stepstep={steps}.ckpt"

    first = trained(2)
    now[0] += 1000  # between two processes
    last = trained(5, first)
    assert [read_checkpoint(path).provenance["seconds"] for path in (first, last)] == [2, 5]
