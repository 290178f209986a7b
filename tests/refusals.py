"""What every refusal of a user's mistake has in common."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vlmtune.errors import UserError


@contextmanager
def refused(match: str | None = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expects a `UserError` of one line in which the pattern `match` is found."""
    with pytest.raises(UserError, match=match) as error:
        yield error
    assert "\n" not in str(error.value)
