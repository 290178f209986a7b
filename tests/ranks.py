"""Processes that form a group."""

import contextlib
import io
import multiprocessing
import os
import traceback

import torch
import torch.distributed as dist


def run_ranks(size, folder, function, *arguments, patience=600):
    """Calls `function(rank, *arguments)` in `size` processes that form a gloo group.

    Returns what each gave, in rank order; what one raised is raised here as text. A rank may take
    `patience` seconds.
    """
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        context.Process(target=_rank, args=(rank, size, folder, results, function, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        given = dict(results.get(timeout=patience) for _ in processes)
        given = {rank: unpacked(value) for rank, value in given.items()}
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    failed = [value for value in given.values() if isinstance(value, Failure)]
    assert not failed, failed[0]
    return [given[rank] for rank in range(size)]


def packed(value):
    """As bytes: tensors in shared memory would be gone when their process ends."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data):
    return torch.load(io.BytesIO(data), weights_only=False)


class Failure(str):
    """The traceback of a rank."""


def _rank(rank, size, folder, results, function, arguments):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # not used: the group is there already
        "TORCHELASTIC_RUN_ID": "test",
    }
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        results.put((rank, packed(function(rank, *arguments))))
    except BaseException:
        results.put((rank, packed(Failure(traceback.format_exc()))))
    finally:
        results.close()
        results.join_thread()
        with contextlib.suppress(RuntimeError, AssertionError):
            dist.destroy_process_group()
