"""Commands, and what every refusal of a mistake has in common, there and in Python."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from vlmtune.cli.main import main
from vlmtune.errors import UserError


def run_command(
    capsys: pytest.CaptureFixture[str], words: Iterable[object]
) -> tuple[int, str, str]:
    """Runs a command; returns its status and what it wrote to both streams."""
    capsys.readouterr()
    status = main([str(word) for word in words])
    output = capsys.readouterr()
    return status, output.out, output.err


def command_output(capsys: pytest.CaptureFixture[str], words: Iterable[object]) -> tuple[str, str]:
    """Runs a command that must end well; returns what it wrote to both streams."""
    status, out, err = run_command(capsys, words)
    assert status == 0, err
    return out, err


@contextmanager
def refused(match: str | None = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expects a `UserError` of one line in which the pattern `match` is found."""
    with pytest.raises(UserError, match=match) as error:
        yield error
    assert "\n" not in str(error.value)


def command_refused(
    capsys: pytest.CaptureFixture[str], words: Iterable[object], *parts: str
) -> list[str]:
    """Runs a command that must end with status 2 and one error that holds `parts`.

    Returns all lines of the error stream; the error is the last.
    """
    status, out, err = run_command(capsys, words)
    lines = err.splitlines()
    assert status == 2, out + err
    assert "Traceback" not in err
    assert lines[-1].startswith("vlmtune: error: ")
    assert sum(line.startswith("vlmtune: error: ") for line in lines) == 1
    for part in parts:
        assert part in lines[-1]
    return lines
