"""`python -m vlmtune` is `vlmtune`."""

from vlmtune.cli.main import entry

if __name__ == "__main__":
    entry()
