import json
import pickle
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer
from tests.forks import forked, status
from vlmtune.errors import UserError
from vlmtune.storage.files import sha256_of
from vlmtune.storage.remote import folder as folders
from vlmtune.storage.remote.download import DownloadError, Patience
from vlmtune.storage.remote.folder import RemoteFile, RemoteFolder

QUICK = Patience(tries=2, timeout=60.0, wait=0.001)
NAMES = ("a", "b", "c")


@pytest.fixture
def remote(server: FaultyServer, tmp_path: Path) -> RemoteFolder:
    for name in NAMES:
        (server.folder / name).write_bytes(name.encode() * 1000)
    (server.folder / "manifest.json").write_text('{"version": 1}')
    return RemoteFolder(server.url, tmp_path / "cache", patience=QUICK)


def listed(remote: RemoteFolder, server: FaultyServer) -> list[RemoteFile]:
    return [remote.file(name, 1000, sha256_of(server.folder / name)) for name in NAMES]


def end_of_thread(remote: RemoteFolder) -> None:
    thread = remote._ahead._thread
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()


def read(files: Sequence[RemoteFile]) -> bytes:
    content = b""
    for one in files:
        with one.open() as file:
            content += file.read()
    return content


def test_equal_files_of_two_folders_are_one(remote, server, tmp_path):
    (server.folder / "sub").mkdir()
    (server.folder / "sub/x").write_bytes(b"a" * 1000)
    read(listed(remote, server)[:1])
    other = RemoteFolder(f"{server.url}/sub", tmp_path / "cache", patience=QUICK)
    assert read([other.file("x", 1000, sha256_of(server.folder / "a"))]) == b"a" * 1000
    assert server.asked == {"a": 1}


def test_the_next_files_are_downloaded_in_the_background(remote, server):
    files = listed(remote, server)
    remote.expect(files)
    end_of_thread(remote)
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    assert read(files) == b"a" * 1000 + b"b" * 1000 + b"c" * 1000
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    # Another process reads them, too.
    copy = pickle.loads(pickle.dumps(files))
    assert read(copy) == b"a" * 1000 + b"b" * 1000 + b"c" * 1000
    remote.expect([])


def test_a_thread_that_ends_at_this_moment_is_waited_for(remote, monkeypatch):
    thread = threading.Thread(target=list)
    thread.start()
    ahead, answers = remote._ahead, [thread]

    def ending(_):
        return answers.pop() if answers else None

    monkeypatch.setattr(type(ahead), "_thread", property(ending), raising=False)
    ahead.wait()
    assert not thread.is_alive()


def test_a_file_is_read_while_the_next_one_comes(remote, server):
    files = listed(remote, server)
    server.faults["b"] = ["hold"]
    remote.expect(files)
    assert server.holding.wait(60)
    assert read(files[:1]) == b"a" * 1000
    server.released.set()
    assert read(files[1:]) == b"b" * 1000 + b"c" * 1000
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    end_of_thread(remote)


def test_no_file_is_downloaded_ahead_without_room_and_what_is_expected_no_more_leaves(
    server, remote, tmp_path
):
    remote = RemoteFolder(server.url, tmp_path / "cache", 2000, QUICK)
    files = listed(remote, server)
    remote.expect(files)
    end_of_thread(remote)
    assert server.asked == {"a": 1, "b": 1}
    read(files[:1])
    remote.expect(files[1:])
    end_of_thread(remote)
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    assert read(files[1:]) == b"b" * 1000 + b"c" * 1000
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    remote.expect(files[:2])
    end_of_thread(remote)
    assert not remote.cache.has_room(1)
    remote.expect([])
    assert remote.cache.has_room(2000)


def test_a_download_that_somebody_else_makes_is_left_to_it(remote, server, tmp_path):
    files, other = listed(remote, server), RemoteFolder(server.url, tmp_path / "cache")
    server.faults["a"] = ["hold"]
    thread = threading.Thread(target=read, args=[listed(other, server)[:1]])
    thread.start()
    assert server.holding.wait(60)
    remote.expect(files)
    end_of_thread(remote)
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    server.released.set()
    thread.join(60)
    assert read(files) == b"a" * 1000 + b"b" * 1000 + b"c" * 1000
    assert server.asked == {"a": 1, "b": 1, "c": 1}


def test_a_failure_in_the_background_is_that_of_the_reader(remote, server):
    files = listed(remote, server)
    server.faults["a"] = ["500"] * 9
    remote.expect(files)
    end_of_thread(remote)
    with pytest.raises(DownloadError, match="2 attempts: the server answered with status 500"):
        files[0].open()
    assert server.asked == {"a": 2, "b": 1, "c": 1}
    read(files[1:])


def test_a_failed_file_is_not_asked_for_again_at_each_record(remote, server, monkeypatch):
    (file, *_) = listed(remote, server)
    server.faults["a"] = ["lie"] * 2
    for _ in range(5):
        with pytest.raises(DownloadError, match="another sha256"):
            file.open()
    assert server.asked == {"a": 2}
    monkeypatch.setattr(folders, "FORGIVEN", 0.0)
    remote._failed.clear()
    server.faults["a"] = ["lie"] * 2
    with pytest.raises(DownloadError, match="another sha256"):
        file.open()
    assert read([file]) == b"a" * 1000


def test_the_manifest_is_read_anew_and_its_copy_serves_when_that_fails(remote, server, caplog):
    first = remote.copy("manifest.json")
    assert json.loads(first.read_text()) == {"version": 1}
    (server.folder / "manifest.json").write_text('{"version": 2}')
    server.faults["manifest.json"] = ["short"]  # it is no JSON, and comes again
    assert json.loads(remote.copy("manifest.json").read_text()) == {"version": 2}
    assert not caplog.messages
    server.faults["manifest.json"] = ["500", "truncate"]
    assert json.loads(remote.copy("manifest.json").read_text()) == {"version": 2}
    (line,) = caplog.messages
    assert line.startswith(f"{server.url}/manifest.json cannot be read after 2 attempts: ")
    assert line.endswith("; reading the copy of an earlier run")


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("fault", ["403", "404"])
def test_a_set_without_a_manifest_is_refused(remote, server, copied, fault):
    if copied:  # its copy is no answer: the storage did not fail
        remote.copy("manifest.json")
    server.faults["manifest.json"] = [fault]
    with pytest.raises(UserError, match=r"^expected manifest.json in http://127[^ ]+, got none: "):
        remote.copy("manifest.json")


def test_the_copy_of_another_user_or_query_does_not_serve(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FIRST", "token=a")
    monkeypatch.setenv("SECOND", "token=b")
    (server.folder / "manifest.json").write_text("{}")
    (server.folder / "a").write_text("a")
    first, second = (
        RemoteFolder(f"{server.url}?${name}", tmp_path, patience=QUICK)
        for name in ("FIRST", "SECOND")
    )
    first.copy("manifest.json")
    server.faults["manifest.json"] = ["500", "500"]
    with pytest.raises(UserError, match=r"^expected manifest.json in http"):
        second.copy("manifest.json")
    sha256 = sha256_of(server.folder / "a")
    assert first.file("a", 1, sha256).key == second.file("a", 1, sha256).key
    unchecked = [x.file("a", 1, sha256, checked=False).key for x in (first, second)]
    assert len({*unchecked, sha256}) == 3


def test_what_a_killed_download_of_a_manifest_left_is_removed(server, tmp_path):
    (server.folder / "manifest.json").write_text("{}")
    server.faults["manifest.json"] = ["stall"]
    stalled = RemoteFolder(server.url, str(tmp_path / "cache"))
    killed = forked(stalled.copy, "manifest.json", log=tmp_path / "log.txt")
    copies, end = tmp_path / "cache/copies", time.monotonic() + 300
    while not any(copies.glob(".*")) and time.monotonic() < end:
        time.sleep(0.01)
    killed.kill()
    assert status(killed) == -signal.SIGKILL
    assert len(list(copies.iterdir())) == 1
    kept = RemoteFolder(server.url, tmp_path / "cache", patience=QUICK).copy("manifest.json")
    assert list(copies.iterdir()) == [kept]
