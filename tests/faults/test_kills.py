"""Work that was killed at a random moment ends as work that was not."""

from pathlib import Path

import pytest

from tests.faults import kills, work
from tests.faults.kills import KINDS, inject


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_work_ends_as_whole_work(ranks, monkeypatch):
    monkeypatch.setattr(work, "STEPS", 8)
    kinds = tuple(kind for kind in KINDS if kind.ranks == ranks)
    tallies = inject(1, seed=ranks, kinds=kinds)
    assert list(tallies) == [kind.name for kind in kinds]
    for tally in tallies.values():
        assert tally.kills >= tally.runs >= 1
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
    assert tally.survived == 0
    assert tally.faults[0].endswith("other than in the whole run: .half.part")
