"""`python -m vlmtune` is `vlmtune`."""

import os
import sys

# As for `vlmtune`, a module in the working folder is imported only where PYTHONPATH names it.
if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from vlmtune.cli.main import entry

if __name__ == "__main__":
    entry()
