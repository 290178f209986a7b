"""Tars named by brace ranges, URLs and commands, gathered in a folder and read as any others."""

from pathlib import Path

import pytest

from tests.data.test_shards import write_tar
from tests.data.test_webdataset import captions_of, members
from tests.faulty_server import serving
from tests.refusals import refused
from vlmtune.data.named_tars import gathered
from vlmtune.data.shards import ShardSet, read_headers
from vlmtune.data.stream import GroupStream


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """An empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path, encoded_png) -> Path:
    """Three tars of two records."""
    out = tmp_path / "others"
    out.mkdir()
    for tar in range(3):
        numbers = (2 * tar, 2 * tar + 1)
        content = [member for n in numbers for member in members(n, encoded_png(n))]
        write_tar(out / f"data-{tar:06d}.tar", content)
    return out


def read(data: ShardSet) -> list[str]:
    """The captions of a set, in order."""
    return captions_of(GroupStream((data,), 1, train=False).batches())


def test_a_range_names_some_tars_of_a_folder_that_are_there_and_changes_none(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    data = ShardSet(str(folder / "data-{000001..000002}.tar"))
    assert read(data) == [f"caption {n}" for n in range(2, 6)]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    whole = {raw.key: group.image_ids for raw, group, _ in read_headers([ShardSet(str(folder))])}
    for raw, group, _ in read_headers([data]):
        assert whole[raw.key] == group.image_ids
    with refused("data-000003.tar, got no such file"):
        _ = ShardSet(str(folder / "data-{000002..000003}.tar")).manifest


def test_a_changed_tar_behind_a_link_is_read_anew(folder, encoded_png):
    path = str(folder / "data-000000.tar")
    assert read(ShardSet(path)) == ["caption 0", "caption 1"]
    write_tar(folder / "data-000000.tar", members(7, encoded_png(7)))
    assert read(ShardSet(path)) == ["caption 7"]


def test_a_range_of_shards_that_build_wrote(shards):
    data = ShardSet(str(shards / "shard-{000001..000002}.tar"))
    whole = [group for _, group, _ in read_headers([ShardSet(str(shards))])]
    some = [group for _, group, _ in read_headers([data])]
    assert [group.key for group in some] == [group.key for group in whole[4:]]
    assert [group.true_ids for group in some] == [group.true_ids for group in whole[4:]]
    assert data.manifest.images == 16


def test_tars_of_one_name_in_two_folders(folder, tmp_path, encoded_png):
    (tmp_path / "b").mkdir()
    write_tar(tmp_path / "b/data-000000.tar", members(9, encoded_png(9)))
    data = ShardSet(f"{tmp_path}/{{others,b}}/data-000000.tar")
    assert read(data) == ["caption 0", "caption 1", "caption 9"]


def test_tars_of_a_server_are_copied_once(folder, home, caplog):
    with serving(folder) as server:
        path = f"{server.url}/data-{{000000..000002}}.tar"
        server.faults["data-000001.tar"] = ["truncate"]
        with caplog.at_level("INFO", "vlmtune"):
            assert read(ShardSet(path)) == [f"caption {n}" for n in range(6)]
        assert "copied 3 tars of http" in caplog.text
        asked = dict(server.asked)
        assert read(ShardSet(path)) == [f"caption {n}" for n in range(6)]
        assert server.asked == asked
        with refused("expected the tar http.*/gone.tar, got none: it cannot be read: there is no"):
            _ = ShardSet(f"{server.url}/gone.tar").manifest
    with refused("without a password"):
        ShardSet("http://me:pass@127.0.0.1/a.tar")


def test_a_command_of_a_config_never_runs(folder, tmp_path):
    command = f"pipe:touch {tmp_path}/ran; cat {folder}/data-000000.tar"
    with refused("pipe: and a command, which runs from the command line alone"):
        _ = ShardSet(command).manifest
    assert not (tmp_path / "ran").exists()
    copied = gathered(command, commands=True)
    assert read(ShardSet(str(copied))) == ["caption 0", "caption 1"]
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "got"),
    [
        ("cat gone.tar", "exit 1"),
        ("echo hello", ".*is not an uncompressed tar.*"),
        ("cat {folder}/data-000000.tar | head -c 1100", "one that is cut off"),
        ("cat {folder}/data-000000.tar | head -c 512", "one that is cut off"),
    ],
)
def test_a_command_that_fails(command, got, folder, tmp_path):
    command = command.format(folder=folder)
    with refused(f"expected a tar from pipe:{command.split()[0]}, got {got}: run the command"):
        gathered(f"pipe:{command}", str(tmp_path), commands=True)
    assert not list(tmp_path.rglob("command.tar"))
