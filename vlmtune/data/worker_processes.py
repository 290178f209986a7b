"""How the worker processes of a `DataLoader` start.

In: their number. Out: the start method for `multiprocessing_context`.
"""

import sys


def start_method(num_workers: int) -> str | None:
    """Returns the start method for `DataLoader`; None is Python's default.

    On Linux workers are forked: they share the order of all records, and start at once. The default
    of Python 3.14 imports torch and copies the order in each worker of each epoch.
    """
    forks = num_workers > 0 and sys.platform == "linux"
    return "fork" if forks else None
