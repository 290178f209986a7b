"""Every rank says which rank ended the run, and why."""

import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

from vlmtune.training.failures import (
    GRACE,
    _kill,
    ended_children,
    failure_of_others,
    is_lost,
    outlive_children,
    publish_failure,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def one_rank(rank, size, port, at_fault, how, lines):
    """One rank ends or hangs in the middle of a run; the others put what they say into `lines`."""
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(1))
    if how in ("sleeps", "stopped"):  # after a start that may be slow
        dist.set_timeout(timedelta(seconds=2))
    if rank == at_fault:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "sleeps":
            time.sleep(100)
        publish_failure("expected a lamp, got a cube: correct it")
        os._exit(2)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        lines.put((is_lost(error), str(failure_of_others(error))))


def ranks(at_fault, how, size=2):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    lines = context.Queue()
    arguments = (size, port, at_fault, how, lines)
    processes = [context.Process(target=one_rank, args=(r, *arguments)) for r in range(size)]
    for process in processes:
        process.start()
    try:
        given = [lines.get(timeout=300) for _ in range(size - 1)]
    finally:
        processes[at_fault].kill()
        for process in processes:
            process.join(10)
            process.kill()
    for lost, line in given:
        assert lost
        assert "\n" not in line
    said = {line for _, line in given}
    assert len(said) == 1
    return said.pop()


@pytest.mark.parametrize("at_fault", [0, 1])
def test_the_reason_of_a_rank_reaches_the_other(at_fault):
    assert ranks(at_fault, "raises") == (
        "expected all ranks to run on, got the end of another: "
        f"rank {at_fault}: expected a lamp, got a cube: correct it: remove the cause, then resume "
        "with --ckpt-path and the last checkpoint"
    )


def test_a_reason_of_several_ranks_is_told_by_the_first(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr("vlmtune.training.failures._store", lambda: store)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    told_before = []
    for rank, reason in ((2, "a: b"), (1, "a: b"), (3, "b")):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        told_before.append(publish_failure(reason))
    assert told_before == [False, True, False]


@pytest.fixture
def short(monkeypatch):
    """A patience that is enough where no rank has a reason to write."""
    monkeypatch.setattr("vlmtune.training.failures.PATIENCE", 2.5)


@pytest.mark.parametrize("at_fault", [0, 1])
def test_a_killed_rank_stops_the_other(at_fault, monkeypatch):
    monkeypatch.setattr("vlmtune.training.failures.PATIENCE", 1.0)
    line = ranks(at_fault, "killed")
    named = "no answer of rank 1, which hangs or was killed"
    assert ("rank 0 ended without an error" if at_fault == 0 else named) in line


@pytest.mark.slow
@pytest.mark.parametrize(("how", "at_fault"), [("sleeps", 2), ("sleeps", 0), ("stopped", 1)])
def test_a_rank_that_hangs_is_named_by_all_others(how, at_fault, short):
    line = ranks(at_fault, how, size=3)
    assert (
        f"got the end of another: no answer of rank {at_fault}, which hangs or was killed" in line
    )


@pytest.mark.slow
def test_a_rank_0_that_does_not_answer_at_all_is_named(short):
    assert "got the end of another: rank 0 hangs: it no longer answers" in ranks(0, "stopped")


@pytest.fixture
def observer(request):
    """Lightning's watch over one process, which ends with a given status."""
    process = subprocess.Popen(["sh", "-c", f"exec {request.param}"])
    if not request.param.startswith("sleep"):
        process.wait()
    watch = _ChildProcessObserver(os.getpid(), [process], sleep_period=0)
    watch._terminate_all = lambda: None
    waiting, released = threading.Event(), threading.Event()

    def wait():
        waiting.set()
        return released.wait()

    watch._run = wait
    outlive_children()  # not started: nothing to see
    watch.start()
    assert waiting.wait(60)  # else it would run what a test sets
    yield watch
    released.set()
    watch.join(10)


@pytest.mark.parametrize(
    ("observer", "reason"),
    [
        ("true", None),
        ("sh -c 'exit 3'", "rank 1 ended by exit status 3"),
        ("sh -c 'kill -9 $$'", "rank 1 ended by SIGKILL"),
    ],
    indirect=["observer"],
)
def test_rank_0_knows_how_a_process_it_started_ended(observer, reason):
    assert ended_children() == reason
    if reason:
        error = failure_of_others(RuntimeError("gloo: connection closed by peer"))
        assert f"got the end of another: {reason}: remove the cause" in str(error)


@pytest.mark.parametrize("observer", ["sh -c 'exit 3'"], indirect=True)
def test_rank_0_has_time_for_its_own_error(observer, monkeypatch, capsys):
    order = []
    monkeypatch.setattr("vlmtune.training.failures.time.sleep", order.append)
    monkeypatch.setattr(observer, "_terminate_all", lambda: order.append("killed"))
    outlive_children()
    observer._run()
    assert order == [GRACE, "killed"]
    assert "rank 1 ended by exit status 3\n" in capsys.readouterr().err


@pytest.mark.parametrize("observer", ["sleep 100"], indirect=True)
def test_a_silent_rank_that_rank_0_started_is_killed(observer):
    _kill([2])
    assert observer._child_processes[0].poll() is None
    _kill([1, 2])
    assert observer._child_processes[0].wait(300) == -signal.SIGKILL
