"""Malformed files give one line, whatever reads them."""

import random
import sys
from collections import Counter

import pytest

from tests.faults import malformed
from tests.faults.malformed import outcome, run
from tests.faults.mutations import mutated
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
    "content", [b'{"a": 1}', b'{"a": 1}\n{"a": 2}\n', b"a,b\n1,2\n", b"\xff\xd8\x00", b"", b"text"]
)
def test_changes_are_those_of_the_seed(content):
    changes = [[mutated(content, random.Random(seed)) for seed in range(40)] for _ in "ab"]
    assert changes[0] == changes[1]
    assert sum(change != content for change in changes[0]) > 10


def test_several_seeds_are_counted_together(monkeypatch, capsys):
    def run(inputs, seed):
        counts = {"a.json": Counter(refused=inputs - 1, fault=1)}
        return counts, [f"seed {seed}, input 0, a.json: x"]

    monkeypatch.setattr(malformed, "run", run)
    monkeypatch.setattr(sys, "argv", ["malformed", "--inputs", "3", "--seed", "4", "5"])
    assert malformed.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"seed {n}: 2 of 3 inputs end in one line or are read" for n in (4, 5)]
    assert lines[-1] == "4 of 6 inputs end in one line or are read"


@pytest.mark.parametrize(
    ("error", "result"),
    [(UserError("one line"), "refused"), (KeyError("a"), "KeyError: 'a'"), (None, "read")],
)
def test_outcomes(error, result):
    def read():
        if error is not None:
            raise error

    assert outcome(read) == result
