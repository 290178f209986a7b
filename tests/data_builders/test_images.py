from collections import Counter
from pathlib import Path

import pytest

from data_builders.images import Presence, inside
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


@pytest.mark.parametrize("name", ["../a.jpg", "b/../../a.jpg", "b/..", "..", "/a.jpg", "//a.jpg"])
def test_names_that_leave_the_folder(tmp_path, name):
    with pytest.raises(UserError) as error:
        inside(tmp_path, name, Path("rows.json"), "row 3")
    assert str(error.value) == (
        f"expected image files inside {tmp_path}, row 3 of rows.json is {name!r}: "
        "use the file as distributed, or correct that name"
    )


@pytest.mark.parametrize("name", ["a.jpg", "b/a.jpg", "./a.jpg", "..a/b..jpg", Path("b/a.jpg"), ""])
def test_names_that_stay_in_the_folder(tmp_path, name):
    assert inside(tmp_path, name, Path("rows.json"), "row 3") == tmp_path / name


def test_links_in_the_folder_are_followed(tmp_path):
    """Large corpora are often linked into the folder."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.jpg").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images/train").symlink_to(tmp_path / "there")
    assert inside(tmp_path / "images", "train/a.jpg", Path("rows.json"), "row 3").is_file()
