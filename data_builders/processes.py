"""Work in several processes. In: a function and its arguments. Out: its results, as they come.

Never: more arguments in memory than the processes need, or a process that outlives the first.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from vlmtune.errors import UserError

T = TypeVar("T")


def in_processes(
    function: Callable[..., T], arguments: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[T]:
    """Yields the result of each call, in any order; one worker is this process itself.

    Args:
        function: A function of a module.
        arguments: The arguments of each call; at most two calls a worker are read ahead.
        workers: Number of processes.

    Example:
        >>> list(in_processes(max, [(1, 2), (4, 3)], workers=1))
        [2, 4]
    """
    if workers == 1:
        for one in arguments:
            yield function(*one)
        return
    # A fork would copy locks of torch's threads; this server of forks has none.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    pool = ProcessPoolExecutor(workers, context, _end_with_the_first)
    try:
        waiting: set[Future[T]] = set()
        for one in arguments:
            waiting.add(pool.submit(function, *one))
            while len(waiting) >= 2 * workers:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in as_completed(waiting))
    except BrokenProcessPool as error:
        raise UserError(
            f"expected {workers} workers to finish, one was killed, perhaps for want of memory: "
            "start the build again with fewer of them"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_the_first() -> None:
    """Ends this process at Ctrl-C, and when the process that started it is gone."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    first = multiprocessing.parent_process()
    assert first is not None

    def watch() -> None:
        first.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
