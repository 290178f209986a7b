"""Throws malformed files at the readers of vlmtune, and counts what is not an error of one line.

    python -m tests.faults.malformed --inputs 1000 --seed 0 1 2

In: a number of inputs and seeds. Out: for each kind of file how many were an error of one line, how
many were read, and each fault: another exception, an error of several lines, another exit status
than 2 of a command, no answer within `PATIENCE` seconds, or something else than before from a file
with a checksum. Never: a new process; all readers are called in this one.
"""

import argparse
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from tests.faults.mutations import mutated
from tests.faults.readers import Reader, write_valid
from vlmtune.errors import UserError
from vlmtune.storage.folder import DamagedError

PATIENCE = 120  # seconds


class NoAnswerError(Exception):
    """A reader took longer than `PATIENCE`."""


def outcome(read: Callable[[], object]) -> str:
    """Returns "read", "refused", or the fault."""

    def give_up(*_: object) -> None:
        raise NoAnswerError

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        read()
    except UserError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {str(error)[:80]!r}"
    except DamagedError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return "read"


def run(inputs: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Returns the outcomes by kind of file, and a line for each fault."""
    draw, faults = random.Random(seed), []
    counts: dict[str, Counter[str]] = {}
    with _folder() as folder:
        readers = write_valid(folder)
        whole = [reader.read() for reader in readers]
        for number in range(inputs):
            reader = readers[number % len(readers)]
            before = whole[number % len(readers)]
            content = reader.path.read_bytes()
            reader.path.write_bytes(mutated(content, draw))
            result = outcome(lambda reader=reader, before=before: _checked(reader, before))
            reader.path.write_bytes(content)
            kind = result if result in ("read", "refused") else "fault"
            counts.setdefault(reader.name, Counter())[kind] += 1
            if kind == "fault":
                faults.append(f"seed {seed}, input {number}, {reader.name}: {result}")
    return counts, faults


def _checked(reader: Reader, before: object) -> None:
    """Reads a file; a sealed one must give what it gave before it was changed."""
    after = reader.read()
    if reader.sealed and after != before:
        raise ValueError(f"read {str(after)[:80]}, not {str(before)[:80]}")


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new folder to work in, which is also the home; no log and no network."""
    offline = {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "a", "b", "c")  # so deep that ../.. is within the new folder
        folder.mkdir(parents=True)
        with contextlib.chdir(folder), mock.patch.dict(os.environ, HOME=name, **offline):
            logging.disable(logging.WARNING)
            try:
                yield folder
            finally:
                logging.disable(logging.NOTSET)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Throws malformed files at every reader.")
    parser.add_argument("--inputs", type=int, default=1000, help="of each seed (%(default)s)")
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[0], help="seeds of the changes (0)", metavar="SEED"
    )
    options = parser.parse_args()
    total: dict[str, Counter[str]] = {}
    faults: list[str] = []
    for seed in options.seed:
        counts, lines = run(options.inputs, seed)
        faults += lines
        for name, by_kind in counts.items():
            total.setdefault(name, Counter()).update(by_kind)
        right = options.inputs - len(lines)
        print(f"seed {seed}: {right} of {options.inputs} inputs end in one line or are read")
    for name, by_kind in total.items():
        refused, read, fault = (by_kind[kind] for kind in ("refused", "read", "fault"))
        print(f"{name}: {refused} refused, {read} read, {fault} faults")
    print("".join(f"{fault}\n" for fault in faults), end="")
    inputs = options.inputs * len(options.seed)
    print(f"{inputs - len(faults)} of {inputs} inputs end in one line or are read")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
