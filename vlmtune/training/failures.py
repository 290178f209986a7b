"""Which rank ended a run, and why: each rank writes its error where other ranks can read it.

In: an error of this rank. Out: one line on every rank that names the rank at fault.
Never: a wait of more than twice `PATIENCE` seconds, or a call that needs a rank that is gone.

A rank that hangs is found by the timeout of the process group: the ranks that waited for it fail,
the waiting ranks report; the silent rank is named.
"""

import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from subprocess import Popen
from typing import Any

import torch.distributed as dist
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

from vlmtune.errors import UserError

KEY = "vlmtune/failure"  # in the ranks' common store: why the first rank failed
ALIVE = "vlmtune/alive"  # with a rank's number: that rank answers
PATIENCE = 5.0
"""Seconds in which a rank at fault writes its error, and the others read it."""
GRACE = 20.0
"""Seconds after which rank 0 is killed if it does not notice that a process it started failed."""
# Errors of gloo and NCCL when a rank no longer answers.
LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out", re.I)


def is_lost(error: BaseException) -> bool:
    """Whether an error says that another rank no longer answers.

    Example:
        >>> is_lost(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
        True
        >>> is_lost(RuntimeError("shapes differ")), is_lost(UserError("gloo"))
        (False, False)
    """
    if dist.is_available() and isinstance(error, dist.DistError):
        return True
    names_connection = LOST.search(str(error)) is not None
    return type(error) is RuntimeError and names_connection


def publish_failure(reason: str) -> bool:
    """Writes this rank's error for the other ranks; whether another rank has written the same.

    It then leaves the group, which ends what gloo's other ranks wait for. Rank 0 stays a little
    longer, as the others read from its process.
    """
    store = _store()
    if store is None:
        return False
    rank = dist.get_rank()
    first = ""
    with contextlib.suppress(RuntimeError, OSError):
        first = store.compare_set(KEY, "", f"rank {rank}: {reason}").decode()
        if dist.get_backend() == "gloo":  # NCCL would wait here for the others
            dist.destroy_process_group()
        if rank == 0:
            time.sleep(PATIENCE / 2)
    return first.partition(": ")[2] == reason and not first.startswith(f"rank {rank}:")


def failure_of_others(error: BaseException) -> UserError:
    """Returns the error for a rank that lost another one.

    It has the reason if that rank gave one, else the ranks that no longer answer. Those of them
    that rank 0 started are killed.
    """
    store = _store()
    reason = ended_children()
    if store is not None and reason is None:
        rank = dist.get_rank()
        size = dist.get_world_size()
        with contextlib.suppress(RuntimeError, OSError):
            if dist.get_backend() == "gloo":  # so that no rank waits for this one
                dist.destroy_process_group()
        reason = _answers_in_time(store, rank, size)
    if reason is None:
        text = " ".join(str(error).split())[:200]
        reason = f"one ended without an error, as a killed process does ({text})"
    return UserError(
        f"expected all ranks to run on, got the end of another: {reason}: remove the cause, then "
        "resume with --ckpt-path and the last checkpoint"
    )


def _answers_in_time(store: Any, rank: int, size: int) -> str | None:
    """What the other ranks say in time; the store may not answer at all."""
    answers: list[str | None] = []

    def collect() -> None:
        try:
            answers.append(_reason(store, rank, size))
        except (RuntimeError, OSError):  # the store was in the process of rank 0
            answers.append("rank 0 ended without an error, as a killed process does")

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(2 * PATIENCE)
    return answers[0] if answers else "rank 0 hangs: it no longer answers"


def _reason(store: Any, rank: int, size: int) -> str | None:
    """Waits for the reason of another rank, then names the ranks that are silent."""
    store.set(f"{ALIVE}/{rank}", "")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if store.check([KEY]):
            return store.get(KEY).decode()
        time.sleep(0.1)
    silent = []
    for other in range(size):
        is_alive = store.check([f"{ALIVE}/{other}"])
        if not is_alive:
            silent.append(other)
    if rank == 0:
        _kill(silent)
        time.sleep(PATIENCE / 2)  # the others read from this process
    if not silent:
        return None
    names = ", ".join(f"rank {other}" for other in silent)
    return f"no answer of {names}, which hangs or was killed"


def _kill(ranks: list[int]) -> None:
    """Kills ranks that rank 0 started: they would run on without it."""
    for rank, process in _children():
        still_runs = process.poll() is None
        if still_runs and rank in ranks:
            process.kill()


def ended_children() -> str | None:
    """Says which process that rank 0 started has failed, and how; None if none has or elsewhere."""
    for rank, process in _children():
        code = process.poll()
        if code:
            how = f"exit status {code}"
            if code < 0:  # Python's code for a process that a signal killed
                how = signal.Signals(-code).name
            return f"rank {rank} ended by {how}"
    return None


def _children() -> Iterator[tuple[int, Popen]]:
    """The ranks that this process started, from 1, with their processes."""
    for observer in _observers():
        yield from enumerate(observer._child_processes, 1)


def outlive_children() -> None:
    """Gives rank 0 time for its own error when a process that it started fails.

    Lightning would kill rank 0 at once, without a word.
    """
    for observer in _observers():
        observer._run = partial(_observe, observer)


def _observe(observer: _ChildProcessObserver) -> bool:
    """Whether all children have ended well; if one failed, kills what still runs after a while."""
    reason = ended_children()
    if reason is not None:
        time.sleep(GRACE)
        print(f"vlmtune: error: expected all ranks to run on, got: {reason}", file=sys.stderr)
        observer._terminate_all()
    return all(process.poll() == 0 for process in observer._child_processes)


def _observers() -> list[_ChildProcessObserver]:
    observers = []
    for thread in threading.enumerate():
        if isinstance(thread, _ChildProcessObserver):
            observers.append(thread)
    return observers


def _store() -> Any:
    connected = dist.is_available() and dist.is_initialized()
    if not connected or dist.get_world_size() == 1:
        return None
    return dist.distributed_c10d._get_default_store()
