"""What every refusal of a user's mistake has in common, in Python and on the command line."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from vlmtune.cli.main import main
from vlmtune.errors import UserError


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
    capsys.readouterr()
    status = main([str(word) for word in words])
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert status == 2, output
    assert "Traceback" not in output.err
    assert lines[-1].startswith("vlmtune: error: ")
    assert sum(line.startswith("vlmtune: error: ") for line in lines) == 1
    for part in parts:
        assert part in lines[-1]
    return lines
