"""Every rank says which rank ended the run, and why."""

import multiprocessing
import os
import signal
import socket
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

from vlmtune.training.failures import (
    GRACE,
    ended_children,
    failure_of_others,
    is_lost,
    outlive_children,
    publish_failure,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def rank_of_two(rank, port, at_fault, how, lines):
    """One rank ends in the middle of a run; the other puts what it says into `lines`."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    if rank == at_fault:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        publish_failure("expected a lamp, got a cube: correct it")
        os._exit(2)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        lines.put((is_lost(error), str(failure_of_others(error))))


def ranks(at_fault, how):
    """What the rank without a fault says, within a minute."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    lines = context.Queue()
    arguments = (port, at_fault, how, lines)
    processes = [context.Process(target=rank_of_two, args=(rank, *arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    try:
        lost, line = lines.get(timeout=60)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    assert lost
    assert "\n" not in line
    return line


@pytest.mark.parametrize("at_fault", [0, 1])
def test_the_reason_of_a_rank_reaches_the_other(at_fault):
    assert ranks(at_fault, "raises") == (
        "expected all ranks to run on, got the end of another: "
        f"rank {at_fault}: expected a lamp, got a cube: correct it: remove the cause, then resume "
        "with --ckpt_path and the last checkpoint"
    )


@pytest.mark.parametrize("at_fault", [0, 1])
def test_a_killed_rank_stops_the_other(at_fault):
    line = ranks(at_fault, "killed")
    assert ("rank 0 ended" if at_fault == 0 else "one ended") in line
    assert "as a killed process does" in line


@pytest.fixture
def observer(request):
    """Lightning's watch over one process, which ends with a given status."""
    process = subprocess.Popen(["sh", "-c", request.param])
    process.wait()
    watch = _ChildProcessObserver(os.getpid(), [process], sleep_period=0)
    watch._terminate_all = lambda: None
    released = threading.Event()
    watch._run = released.wait
    outlive_children()  # not started: nothing to see
    watch.start()
    yield watch
    released.set()
    watch.join(10)


@pytest.mark.parametrize(
    ("observer", "reason"),
    [
        ("exit 0", None),
        ("exit 3", "rank 1 ended by exit status 3"),
        ("kill -9 $$", "rank 1 ended by SIGKILL"),
    ],
    indirect=["observer"],
)
def test_rank_0_knows_how_a_process_it_started_ended(observer, reason):
    assert ended_children() == reason
    if reason:
        error = failure_of_others(RuntimeError("gloo: connection closed by peer"))
        assert f"got the end of another: {reason}: remove the cause" in str(error)


@pytest.mark.parametrize("observer", ["exit 3"], indirect=True)
def test_rank_0_has_time_for_its_own_error(observer, monkeypatch, capsys):
    order = []
    monkeypatch.setattr("vlmtune.training.failures.time.sleep", order.append)
    monkeypatch.setattr(observer, "_terminate_all", lambda: order.append("killed"))
    outlive_children()
    observer._run()
    assert order == [GRACE, "killed"]
    assert "rank 1 ended by exit status 3\n" in capsys.readouterr().err
