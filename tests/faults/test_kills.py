"""Work that was killed at a random moment ends as work that was not."""

from pathlib import Path

import pytest

from tests.faults import kills, work
from tests.faults.kills import KINDS, Tally, inject


@pytest.mark.slow
def test_killed_work_of_one_process_ends_as_whole_work(monkeypatch):
    monkeypatch.setattr(work, "STEPS", 8)
    alone = tuple(kind for kind in KINDS if kind.ranks == 1)
    tallies = inject(1, seed=1, kinds=alone)
    assert list(tallies) == [kind.name for kind in alone]
    for tally in tallies.values():
        assert tally.kills >= tally.runs == 1
        assert (tally.survived, tally.faults) == (tally.kills, [])


@pytest.mark.slow
def test_killed_ranks_end_as_whole_ranks(monkeypatch):
    monkeypatch.setattr(work, "STEPS", 8)
    [tally] = inject(1, seed=2, kinds=(work.RANKS,)).values()
    assert tally.kills >= 1
    assert (tally.survived, tally.faults) == (tally.kills, [])


def test_a_run_that_leaves_something_else_is_no_survivor(monkeypatch):
    """Each repeated build also leaves a hidden file."""
    whole = work.left

    def with_more(kind, out: Path):
        if "killed" in out.name:
            (out / ".half.part").touch()
        return whole(kind, out)

    monkeypatch.setattr(kills, "left", with_more)
    [tally] = inject(1, seed=1, kinds=(work.CORPUS,)).values()
    assert isinstance(tally, Tally)
    assert tally.survived == 0
    assert tally.faults[0].endswith("other than in the whole run: .half.part")
