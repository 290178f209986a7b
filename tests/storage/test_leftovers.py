"""What a killed process left behind is removed by the next one that writes the same file."""

import os
import subprocess

import pytest

from tests.refusals import refused
from tests.runs import quiet_trainer
from vlmtune.cli.run_folder import alone_in
from vlmtune.storage.files import _host, all_or_none, write_atomically, write_text


@pytest.fixture
def dead():
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_leftovers_of_killed_processes_go_and_those_of_others_stay(tmp_path, dead):
    kept = [f".a.txt.{_host()}{os.getpid():010d}.other", f".b.txt.{_host()}{dead:010d}.part"]
    kept += [f".a.txt.{_host() + 1}{dead:010d}.part"]  # of another machine
    for name in [*kept, f".a.txt.{_host()}{dead:010d}.part"]:
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a.txt"])


def test_a_folder_that_was_renamed_away_comes_back(tmp_path, dead):
    old = tmp_path / f".a.txt.{_host()}{dead:010d}.old"
    old.write_text("old")

    def fail():
        with write_atomically(tmp_path / "a.txt"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("there", [True, False])
def test_of_a_link_the_target_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    for name in ("text", "folder"):
        (tmp_path / name).symlink_to(f"far/{name}")
    if there:
        (tmp_path / "far/text").write_text("old")
        (tmp_path / "far/folder").mkdir()
    with all_or_none():
        write_text(tmp_path / "text", "new")
    with write_atomically(tmp_path / "folder") as new:
        new.mkdir()
        write_text(new / "a", "new")
    for file in ("text", "folder/a"):
        assert (tmp_path / "far" / file).read_text() == (tmp_path / file).read_text() == "new"
    assert (tmp_path / "text").is_symlink()
    assert (tmp_path / "folder").is_symlink()
    assert sorted(os.listdir(tmp_path / "far")) == ["folder", "text"]


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with refused(f"expected to write {tmp_path / 'pipe'}, got .*a pipe or a device"):
        write_text(tmp_path / "pipe", "new")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_second_run_in_a_folder_is_refused(tmp_path):
    trainer = quiet_trainer(default_root_dir=tmp_path)
    with alone_in(trainer):
        second = alone_in(trainer)
        with refused(f"expected a folder of its own for this run, got {tmp_path}"):
            second.__enter__()
    assert os.listdir(tmp_path) == []
    with alone_in(trainer):  # it is free again
        pass
