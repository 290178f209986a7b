"""Malformed files give one line, whatever reads them."""

import pytest

from scripts.faults.malformed import outcome, run
from vlmtune.errors import UserError


def test_malformed_files_give_one_line_or_are_read():
    counts, faults = run(inputs=40, seed=1)
    assert faults == []
    assert sum(sum(kinds.values()) for kinds in counts.values()) == 40
    assert len(counts) == 10


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (UserError("one line"), "refused"),
        (UserError("two\nlines"), "several lines: 'two\\nlines'"),
        (KeyError("a"), "KeyError: 'a'"),
        (None, "read"),
    ],
)
def test_outcomes(error, result):
    def read():
        if error is not None:
            raise error

    assert outcome(read) == result
