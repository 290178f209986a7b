"""What a checkpoint says of the run that wrote it, where no benchmark is measured."""

from tests.runs import QUIET, Clock, fit, module
from vlmtune.model import read_checkpoint
from vlmtune.training.run_log import Origin

pytestmark = QUIET


def test_a_checkpoint_tells_the_time_of_all_its_steps(model_folder, shards, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    def trained(steps, resume=None):
        callbacks = (clock, Origin())
        fit(module(model_folder), shards, tmp_path, steps, callbacks, save=True, resume=resume)
        return tmp_path / f"stepstep={steps}.ckpt"

    first = trained(2)
    clock.now += 1000  # between two processes
    last = trained(5, first)
    assert [read_checkpoint(path).provenance["seconds"] for path in (first, last)] == [2, 5]
