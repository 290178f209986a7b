"""Malformed files give one line, whatever reads them."""

import pytest

from tests.faults import malformed
from tests.faults.malformed import outcome, run
from tests.faults.readers import Reader
from vlmtune.errors import UserError


@pytest.mark.filterwarnings("ignore")
def test_malformed_files_give_one_line_or_are_read():
    counts, faults = run(inputs=60, seed=1)
    assert faults == []
    assert sum(sum(kinds.values()) for kinds in counts.values()) == 60
    assert len(counts) >= 45


def test_something_else_read_from_a_file_with_a_checksum_is_a_fault(monkeypatch):
    def write(folder):
        (folder / "a").write_bytes(bytes(20))
        return [Reader(folder / "a", (folder / "a").read_bytes, sealed=True)]

    monkeypatch.setattr(malformed, "write_valid", write)
    _, faults = run(inputs=5, seed=0)
    assert len(faults) == 5
    assert faults[0].startswith("seed 0, input 0, c/a: ValueError: read b")


@pytest.mark.parametrize(
    ("error", "result"),
    [(UserError("one line"), "refused"), (KeyError("a"), "KeyError: 'a'"), (None, "read")],
)
def test_outcomes(error, result):
    def read():
        if error is not None:
            raise error

    assert outcome(read) == result
