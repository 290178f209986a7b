from collections import Counter
from pathlib import Path

import pytest

from data_builders.images import Presence
from vlmtune.errors import UserError


def test_the_limit_is_a_share(tmp_path):
    there = tmp_path / "a.jpg"
    there.touch()
    counts: Counter[str] = Counter()
    presence = Presence(counts, 0.5)
    assert presence.has(there)
    assert not presence.has(tmp_path / "b.jpg")
    presence.check()
    assert not presence.has(tmp_path / "c.jpg")
    with pytest.raises(UserError, match=r"at most 50% of 3 images .* got 2, .*b\.jpg first"):
        presence.check()
    assert counts == {"skipped: image missing": 2}


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_wrong_limits(limit):
    with pytest.raises(UserError, match="from 0 to 1"):
        Presence(Counter(), limit)


def test_a_folder_is_no_image(tmp_path: Path):
    assert not Presence(Counter()).has(tmp_path)
