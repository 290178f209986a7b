import os
from pathlib import Path

import pytest
import torch
from jsonargparse import Namespace
from pytorch_lightning.plugins.environments import SLURMEnvironment

from vlmtune.cli.run_folder import AtomicCheckpoints, MetricsFile, default_logger
from vlmtune.training import checkpoint_files
from vlmtune.training.checkpoint_files import LAST, ON_SIGNAL, newest_checkpoint


def test_a_checkpoint_is_written_and_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))  # it is not used
    path = tmp_path / "new" / "last.ckpt"
    for step in (1, 2):
        AtomicCheckpoints().save_checkpoint({"step": step}, path)
        assert torch.load(path, weights_only=True) == {"step": step}
    assert os.listdir(path.parent) == ["last.ckpt"]
    assert path.stat().st_mode & 0o444 == 0o444  # others may read it, as any file


@pytest.mark.parametrize("moment", ["save", "fsync", "replace"])
def test_what_stops_halfway_leaves_the_old_checkpoint(tmp_path, monkeypatch, moment):
    path, whole = tmp_path / "last.ckpt", AtomicCheckpoints()
    whole.save_checkpoint({"step": 1}, path)

    def die(*_, **__):
        raise SystemExit

    def half(_, file):
        file.write(b"half")
        die()

    with monkeypatch.context() as patch:
        if moment == "save":
            patch.setattr(torch, "save", half)
        else:
            patch.setattr(os if moment == "fsync" else Path, moment, die)
        with pytest.raises(SystemExit):
            whole.save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert os.listdir(tmp_path) == ["last.ckpt"]
    whole.save_checkpoint({"step": 3}, path)
    assert torch.load(path, weights_only=True) == {"step": 3}
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize(("requeued", "job"), [(True, True), (True, False), (False, True)])
def test_a_requeued_job_of_slurm_adds_to_its_metrics(tmp_path, monkeypatch, requeued, job):
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    folder = f"~/{tmp_path.name}"  # as in a config, where no shell replaces ~
    config = Namespace(trainer=Namespace(default_root_dir=folder), ckpt_path=None)
    monkeypatch.setattr(SLURMEnvironment, "detect", lambda: job)
    (tmp_path / "metrics.csv").write_text("train/loss\n0.5\n")
    if requeued:
        (tmp_path / "hpc_ckpt_1.ckpt").touch()
    logger = default_logger("fit", config)
    assert isinstance(logger, MetricsFile)
    logger.log_metrics({"train/loss": 0.25}, step=1)
    logger.save()
    assert ("0.5" in (tmp_path / "metrics.csv").read_text()) == (requeued and job)


@pytest.mark.parametrize(
    ("last", "on_signal", "newest"),
    [(3, 5, ON_SIGNAL), (5, 3, LAST), (3, 3, LAST), (3, None, LAST), (None, 3, ON_SIGNAL)],
)
def test_a_run_resumes_from_the_checkpoint_with_more_steps(
    tmp_path, monkeypatch, last, on_signal, newest
):
    monkeypatch.setattr(checkpoint_files, "_step", lambda path: int(path.read_text()))
    (tmp_path / LAST).parent.mkdir()
    for name, step in ((LAST, last), (ON_SIGNAL, on_signal)):
        if step is not None:
            (tmp_path / name).write_text(str(step))
    assert newest_checkpoint(tmp_path) == tmp_path / newest
