"""How the worker processes of a `DataLoader` start, and what a signal does to them.

In: their number. Out: arguments of `DataLoader`.
"""

import signal
import sys


def start_method(num_workers: int) -> str | None:
    """Returns the start method for `DataLoader`; None is Python's default.

    On Linux workers are forked: they share the order of all records, and start at once. The default
    of Python 3.14 imports torch and copies the order in each worker of each epoch.
    """
    forks = num_workers > 0 and sys.platform == "linux"
    return "fork" if forks else None


def outlive_a_signal(worker: int) -> None:
    """Lets a worker ignore the first signal, which may go to all processes of a job.

    The training then ends its step, writes a checkpoint and stops the workers itself.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda again, _: signal.signal(again, signal.SIG_DFL))
