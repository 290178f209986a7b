"""The standard streams of a command take any text, and a reader who stops reading ends no run.

In: the streams that Python opened. Out: some that never fail for their encoding or a closed pipe.
The output shows a terminal no control characters; bars, which need them, are on the error stream.
A file or a pipe gets each line at once. Never: a change of what goes there.
"""

import io
import os
import sys
from typing import Any

from typing_extensions import override

from vlmtune.report.printable import printable


class Stream(io.TextIOWrapper):
    r"""A text stream for people.

    What its encoding lacks is written as `\\u2192`. Once a pipe is closed, as by `| head -1`, the
    rest goes nowhere.
    """

    @override
    def write(self, text: str, /) -> int:
        try:
            super().write(text)
        except BrokenPipeError:
            self._discard()
        return len(text)

    @override
    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._discard()

    def _discard(self) -> None:
        # The descriptor itself, as libraries and Python's shutdown flush it again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class Output(Stream):
    """A stream that shows a terminal no control characters."""

    @override
    def write(self, text: str, /) -> int:
        shown = printable(text, colours=True) if self.isatty() else text
        super().write(shown)
        return len(text)


def sturdy(stream: Any, kind: type[Stream] = Output) -> Any:
    """Returns a `kind` over a standard stream, or over nothing if the stream is closed."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    # Read before `detach`, which leaves a stream without an encoding.
    encoding = stream.encoding
    # By lines, so that whoever follows a log file sees what a run says when it says it.
    return kind(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=True)


def sturdy_streams() -> None:
    """Replaces the standard output and the error stream of this process."""
    sys.stdout = sturdy(sys.stdout)
    sys.stderr = sturdy(sys.stderr, Stream)
