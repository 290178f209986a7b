"""What a killed process left behind is removed by the next one that writes the same file."""

import os
import subprocess

import pytest
from pytorch_lightning.loggers import CSVLogger

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


def test_a_large_folder_is_not_listed_at_each_write(tmp_path, monkeypatch, dead):
    leftover = tmp_path / f".last.{_host()}{dead:010d}.part"
    leftover.write_text("half")
    listed = []
    for name in ("listdir", "scandir"):
        original = getattr(os, name)

        def noted(*folder, list_it=original):
            listed.append(folder)
            return list_it(*folder)

        monkeypatch.setattr(os, name, noted)
    for number in range(1000):
        write_text(tmp_path / f"{number}", "whole")
    assert len(listed) < 400
    write_text(tmp_path / "last", "whole")
    assert not leftover.exists()


def test_a_folder_that_was_renamed_away_comes_back(tmp_path, dead):
    old = tmp_path / f".a.txt.{_host()}{dead:010d}.old"

    def fail():
        with write_atomically(tmp_path / "a.txt"):
            raise KeyboardInterrupt

    # The second time as if killed after both renamings.
    for content in ("old", "older"):
        old.write_text(content)
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


@pytest.mark.parametrize("logger", [False, CSVLogger("elsewhere")])
def test_a_second_run_in_a_folder_is_refused(tmp_path, logger):
    trainer = quiet_trainer(default_root_dir=tmp_path, logger=logger)
    with alone_in(trainer, None):
        second = alone_in(trainer, None)
        with refused(f"expected a folder of its own for this run, got {tmp_path}"):
            second.__enter__()
    assert os.listdir(tmp_path) == []
    with alone_in(trainer, None):  # it is free again
        pass


def test_what_an_earlier_run_left_is_set_aside_unless_it_is_resumed(tmp_path, caplog):
    trainer, own = quiet_trainer(default_root_dir=tmp_path), ["config.yaml", "my notes"]
    caplog.clear()  # what Lightning says of devices
    for name in own:
        (tmp_path / name).write_text("first")
    with alone_in(trainer, None):  # a config alone is of a run that did not begin
        pass
    for number in range(2):
        (tmp_path / "config.yaml").write_text(f"{number}")
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints/last.ckpt").write_text(f"{number}")
        before = sorted(os.listdir(tmp_path))
        with alone_in(trainer, "last"):
            assert sorted(set(os.listdir(tmp_path)) - {".fit.lock"}) == before
        assert len(caplog.messages) == number
        with alone_in(trainer, None):
            assert not (tmp_path / "checkpoints").exists()
        kept = tmp_path / f"earlier_{number}"
        assert (kept / "checkpoints/last.ckpt").read_text() == f"{number}"
        assert sorted(os.listdir(kept)) == ["checkpoints", "config.yaml"]
        assert f"{tmp_path} had another run, which is in {kept} now" in caplog.messages[-1]
    assert sorted(os.listdir(tmp_path)) == ["earlier_0", "earlier_1", "my notes"]
