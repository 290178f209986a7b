"""A signal ends a run at the end of a step, with a checkpoint that resumes to the same end."""

import os
import signal
from pathlib import Path

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from tests.ranks import run_ranks
from tests.runs import QUIET, Batches, fit, module, quiet_trainer, same_weights, weights
from tests.toy import Toy, Tune, batch, groups
from vlmtune.cli.fit import stop_line
from vlmtune.data.datamodule import NoBatches
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training.module import AdaptationModule
from vlmtune.training.signals import SIGNALS, Signals, Stopped

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


class Send(Callback):
    """Sends a signal to this process at the start of a batch, counted from 0 over the run."""

    def __init__(self, number, at=2, hook="on_train_batch_start", times=1):
        def send(*_):
            self.batches += 1
            if self.batches == at + 1:
                for _ in range(times):
                    os.kill(os.getpid(), number)

        self.batches = 0
        setattr(self, hook, send)


@pytest.fixture
def handlers():
    """The handlers of all signals must be the same before and after a run."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("accumulated", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_stopped_run_resumes_to_the_same_end(
    model_folder, shards, tmp_path, handlers, accumulated
):
    options = {"accumulate_grad_batches": accumulated, "steps": 6 // accumulated}
    whole = module(model_folder)
    fit(whole, shards, tmp_path / "whole", **options)
    # Without accumulation batch 3 is that of step 4; an epoch has three batches, so with pairs of
    # batches the steps end after batches 1, 2 and 4.
    step = {1: 4, 2: 3}[accumulated]
    for number, code in CODES.items():
        folder, send = tmp_path / number.name, Send(number, at=3)
        with pytest.raises(Stopped) as stopped:
            fit(module(model_folder), shards, folder, callbacks=(send,), **options)
        path = folder / "last-on-signal.ckpt"
        assert (stopped.value.code, stopped.value.path) == (code, path)
        assert torch.load(path, weights_only=True)["global_step"] == stopped.value.step == step
        again = module(model_folder)
        fit(again, shards, folder / "again", resume=path, **options)
        assert same_weights(weights(again), weights(whole))


def test_the_checkpoint_of_sigusr1_is_written_while_the_run_goes_on(
    model_folder, shards, tmp_path, handlers, capsys
):
    whole, watched = module(model_folder), module(model_folder)
    fit(whole, shards, tmp_path / "whole")
    trainer, watch = fit(watched, shards, tmp_path, callbacks=(Send(signal.SIGUSR1),))
    path = tmp_path / "last-on-signal.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 3
    assert (trainer.global_step, len(watch.losses)) == (6, 6)
    assert capsys.readouterr().err == f"vlmtune fit: wrote {path} (weights of step 3)\n"
    assert same_weights(weights(watched), weights(whole))


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    """A job of Slurm with one task; returns the file with the arguments of `scontrol`."""
    called = tmp_path / "scontrol-called"
    command = tmp_path / "bin" / "scontrol"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> {called}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    numbers = {"NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "NNODES": "1"}
    job = {"JOB_ID": "1234", "JOB_NAME": "train", "NTASKS_PER_NODE": "1", **numbers}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    return called


@pytest.mark.filterwarnings("ignore:.*srun.*")
def test_a_signal_to_a_job_of_slurm_writes_what_it_resumes_from_and_sigusr1_requeues_it(
    model_folder, shards, tmp_path, handlers, slurm
):
    with pytest.raises(Stopped) as stopped:
        fit(module(model_folder), shards, tmp_path, callbacks=(Send(signal.SIGUSR1),))
    assert stopped.value.code == 0
    assert slurm.read_text() == "requeue 1234\n"
    assert stopped.value.path == tmp_path / "hpc_ckpt_1.ckpt"
    assert (tmp_path / "hpc_ckpt_1.ckpt").is_file()
    _, watch = fit(module(model_folder), shards, tmp_path)  # no checkpoint is named
    assert len(watch.losses) == 3
    # SIGTERM writes the same and requeues nothing.
    slurm.unlink()
    with pytest.raises(Stopped) as stopped:
        fit(module(model_folder), shards, tmp_path / "2", callbacks=(Send(signal.SIGTERM),))
    assert (stopped.value.code, stopped.value.path) == (143, tmp_path / "2/hpc_ckpt_1.ckpt")
    assert not slurm.exists()


def test_sigterm_outside_training_ends_the_run_or_lets_it_end(
    model_folder, shards, tmp_path, handlers
):
    send = Send(signal.SIGTERM, at=0, hook="on_fit_start")
    with pytest.raises(Stopped) as stopped:
        fit(module(model_folder), shards, tmp_path, callbacks=(send,))
    assert (stopped.value.code, stopped.value.path) == (143, None)
    assert stop_line(stopped.value, "fit", []) == (
        "vlmtune: stopped by SIGTERM outside training, no checkpoint was written"
    )
    send = Send(signal.SIGTERM, at=0, hook="on_train_end")
    trainer, _ = fit(module(model_folder), shards, tmp_path, callbacks=(send,), steps=2)
    assert trainer.global_step == 2
    assert not (tmp_path / "last-on-signal.ckpt").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_second_interrupt_stops_at_once(model_folder, shards, tmp_path, handlers):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as stopped:
        fit(module(model_folder), shards, tmp_path, callbacks=(Send(signal.SIGINT, times=2),))
    assert not isinstance(stopped.value, Stopped)
    assert isinstance(stopped.value.__context__, KeyboardInterrupt)
    assert not (tmp_path / "last-on-signal.ckpt").exists()
    signal.signal(signal.SIGINT, before)  # Lightning ignores it from here on


def stops(rank, corpora, folder, number, at):
    """What each rank notes where a signal comes to rank 1 alone."""
    torch.manual_seed(1)
    callbacks = [Send(number, at=at)] if rank else []
    options = {"devices": 2, "strategy": "ddp", "max_steps": 4, "callbacks": callbacks}
    trainer = quiet_trainer(**options, default_root_dir=folder)
    batches = Batches([batch(corpus[rank]) for corpus in corpora])
    made = AdaptationModule(Toy(), Tune(), [InfoNCE()])
    if number == signal.SIGUSR1:
        trainer.fit(made, batches, NoBatches())
        return trainer.global_step
    with pytest.raises(Stopped) as stopped:
        trainer.fit(made, batches, NoBatches())
    return stopped.value.signal, stopped.value.step, stopped.value.path, stopped.value.code


@pytest.mark.parametrize("at", [0, 1])
def test_a_signal_at_one_rank_stops_all_in_the_same_step(tmp_path, at):
    corpora = [groups((3, 2), seed) for seed in range(3)]
    path = Path(tmp_path) / "last-on-signal.ckpt"
    arguments = (corpora, tmp_path, signal.SIGTERM, at)
    ends = run_ranks(2, tmp_path / "ranks", stops, *arguments)
    assert ends == [(signal.SIGTERM, at + 1, path, 143)] * 2
    assert torch.load(path, weights_only=True)["global_step"] == at + 1


def test_sigusr1_at_one_rank_stops_none(tmp_path):
    corpora = [groups((3, 2), seed) for seed in range(3)]
    ends = run_ranks(2, tmp_path / "ranks", stops, corpora, tmp_path, signal.SIGUSR1, 1)
    assert ends == [4, 4]
    path = tmp_path / "last-on-signal.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_rank_0_started_exit_with_0(monkeypatch, rank):
    """Lightning watches them, and kills rank 0 if one fails: it could be writing its last line."""
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # the trainer sets it, for all later tests
    signals = Signals(quiet_trainer(devices=2, strategy="ddp"))
    try:
        assert signals._is_child() == (rank == 1)
    finally:
        signals.teardown()
