"""`python -m vlmtune` is `vlmtune`."""

import os
import signal
import sys

# As for `vlmtune`, a module in the working folder is imported only where PYTHONPATH names it.
if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]


def entry() -> None:
    """The `vlmtune` program."""
    # Ctrl-C during the imports below needs no traceback.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from vlmtune.cli import main

    main.entry()


if __name__ == "__main__":
    entry()
