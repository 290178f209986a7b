import hashlib
import os
import signal
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer
from tests.forks import forked, status
from vlmtune.errors import UserError
from vlmtune.storage.files import sha256_of
from vlmtune.storage.remote.cache import FileCache
from vlmtune.storage.remote.download import DownloadError, Patience
from vlmtune.storage.remote.folder import RemoteFolder

A, B, C, D = (letter * 64 for letter in "abcd")


def read_it(pipe: Connection, folder: RemoteFolder, name: str, size: int, sha256: str) -> None:
    pipe.send("ready")
    with folder.file(name, size, sha256).open() as file:
        pipe.send(len(file.read()))
        pipe.recv()


def reader(
    server: FaultyServer, cache: Path, name: str, sha256: str
) -> tuple[ForkProcess, Connection]:
    """Opens a file in another process; its pipe gives the size, and takes what closes the file."""
    folder = RemoteFolder(server.url, cache, patience=Patience(tries=3, timeout=60.0, wait=0.001))
    size = (server.folder / name).stat().st_size
    pipe, other = Pipe()
    process = forked(read_it, other, folder, name, size, sha256, log=cache.with_name("log.txt"))
    assert pipe.recv() == "ready"
    return process, pipe


def kill(process: ForkProcess) -> None:
    process.kill()
    assert status(process) == -signal.SIGKILL


def writes(content: bytes):
    return lambda part: part.write_bytes(content) and None


def must_not_run(part: Path) -> None:
    raise AssertionError("downloaded again")


def put(cache: FileCache, key: str, size: int = 10) -> None:
    with cache.open(key, size, writes(b"x" * size)) as file:
        assert file.read() == b"x" * size


def names(cache: FileCache) -> set[str]:
    return {path.name[0] for path in cache.folder.iterdir() if len(path.name) == 64}


def test_the_least_recently_used_go_first(tmp_path):
    cache = FileCache(tmp_path, 30)
    for used, key in enumerate((A, B, C)):
        put(cache, key)
        os.utime(tmp_path / key, ns=(used, used))
    cache.open(A, 10, must_not_run).close()
    put(cache, D)
    assert names(cache) == {"a", "c", "d"}
    put(cache, B, 20)
    assert names(cache) == {"b", "d"}


def test_files_in_use_stay_and_the_excess_is_warned_of_once(tmp_path, caplog):
    cache = FileCache(tmp_path, 20)
    with cache.open(A, 10, writes(b"a" * 10)) as first:
        os.utime(tmp_path / A, ns=(0, 0))
        put(cache, B)
        put(cache, C)
        assert names(cache) == {"a", "c"}
        assert not caplog.messages
        put(cache, D, 15)
        assert names(cache) == {"a", "d"}
        assert first.read() == b"a" * 10
        put(cache, B, 15)
        assert names(cache) == {"a", "b"}
    (line,) = caplog.messages
    assert f"{tmp_path} takes 25 bytes, more than its limit of 20" in line
    put(cache, C)
    assert names(cache) == {"c"}


def test_room_is_what_files_in_use_and_downloads_that_go_on_leave(tmp_path):
    cache = FileCache(tmp_path, 20)
    put(cache, A)
    (tmp_path / f".{C}.15.1.part").touch()  # of a killed download, which counts no more
    assert cache.has_room(20)
    assert not cache.has_room(21)
    assert not list(tmp_path.glob(".*.part"))
    with cache.open(A, 10, must_not_run):
        assert cache.has_room(10)
        assert not cache.has_room(11)

    def download(part: Path) -> None:
        assert FileCache(tmp_path, 20).has_room(10)
        assert not FileCache(tmp_path, 20).has_room(11)
        assert names(cache) == {"a"}
        assert cache.open(B, 10, must_not_run, wait=False) is None
        part.write_bytes(b"y" * 10)

    cache.open(B, 10, download).close()
    assert names(cache) == {"a", "b"}


def test_what_is_not_needed_waits_for_a_reader_that_came_between(tmp_path, monkeypatch, caplog):
    cache = FileCache(tmp_path, 20)
    put(cache, A)
    put(cache, B)
    opened = []
    fits = cache._fits

    def fits_and_others_read(size: int) -> bool:
        answer = fits(size)
        opened.extend(cache.open(key, 10, must_not_run) for key in (A, B))
        return answer

    monkeypatch.setattr(cache, "_fits", fits_and_others_read)
    assert cache.open(C, 10, must_not_run, wait=False) is None
    assert len(opened) == 2
    assert names(cache) == {"a", "b"}
    assert not caplog.messages
    for file in opened:
        file.close()


def test_other_files_of_the_folder_are_never_touched(tmp_path):
    (tmp_path / "thesis").write_text("x" * 100)
    (tmp_path / ".hidden.txt").write_text("x" * 100)
    (tmp_path / "folder").mkdir()
    cache = FileCache(tmp_path, 10)
    put(cache, A)
    put(cache, B)
    assert names(cache) == {"b"}
    assert {"thesis", ".hidden.txt", "folder"} <= {path.name for path in tmp_path.iterdir()}


def test_a_file_that_was_changed_in_the_cache_is_downloaded_again(tmp_path, monkeypatch, caplog):
    cache, content = FileCache(tmp_path, 100), b"x" * 10
    sha256 = hashlib.sha256(content).hexdigest()

    def read(download):
        with cache.open(sha256, 10, download, sha256=sha256) as file:
            assert file.read() == content

    read(writes(content))
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", must_not_run)
        read(must_not_run)  # nobody reads it as long as it is as it was
    (tmp_path / sha256).write_bytes(b"x" * 9 + b"y")
    assert not caplog.messages
    read(writes(content))
    assert caplog.messages == [
        f"{tmp_path / sha256} was changed after its download: it is downloaded again"
    ]
    (tmp_path / sha256).write_bytes(content)  # such as by a copy of the folder
    read(must_not_run)
    (tmp_path / f"{sha256}.checked").unlink()  # of a cache that wrote none
    read(must_not_run)


def test_a_failed_download_leaves_nothing_and_is_tried_again(tmp_path):
    cache = FileCache(tmp_path, 100)

    def fail(part: Path) -> None:
        raise DownloadError("cannot be read: gone")

    for _ in range(2):
        with pytest.raises(DownloadError, match="gone"):
            cache.open(A, 10, fail)
        assert not list(tmp_path.glob(".*"))
    put(cache, A)
    assert not list(tmp_path.glob("*.failed"))


def test_those_who_wait_share_a_failure(tmp_path):
    waits, errors = threading.Event(), []

    class Waiting(FileCache):
        def _locked(self, key, wait=True):
            waits.set()
            return super()._locked(key, wait)

    def wait_for_it() -> None:
        try:
            Waiting(tmp_path, 100).open(A, 10, must_not_run)
        except DownloadError as error:
            errors.append(str(error))

    other = threading.Thread(target=wait_for_it)

    def fail(part: Path) -> None:
        other.start()
        assert waits.wait(60)
        raise DownloadError("cannot be read: gone")

    with pytest.raises(DownloadError, match="gone"):
        FileCache(tmp_path, 100).open(A, 10, fail)
    other.join(60)
    assert errors == ["cannot be read: gone"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^expected to write .* \(Not a directory\): name"):
        FileCache(tmp_path / "file" / "cache", 10).open(A, 1, must_not_run)


def test_a_killed_download_is_taken_over(server, tmp_path):
    cache = tmp_path / "cache"
    (server.folder / "a.tar").write_bytes(b"x" * 10_000)
    sha256 = sha256_of(server.folder / "a.tar")
    server.faults["a.tar"] = ["stall"]
    killed, _ = reader(server, cache, "a.tar", sha256)
    assert server.holding.wait(60)
    waiting, pipe = reader(server, cache, "a.tar", sha256)
    assert [path.stem.split(".")[1] for path in cache.glob(".*.part")] == [sha256]
    assert names(FileCache(cache, 1)) == set()
    kill(killed)
    assert pipe.recv() == 10_000
    pipe.send("close")
    assert status(waiting) == 0
    assert server.asked["a.tar"] == 2
    assert not list(cache.glob(".*"))


def test_a_file_that_another_process_reads_stays_until_that_is_killed(server, tmp_path):
    cache = tmp_path / "cache"
    (server.folder / "a.tar").write_bytes(b"x" * 10)
    sha256 = sha256_of(server.folder / "a.tar")
    other, pipe = reader(server, cache, "a.tar", sha256)
    assert pipe.recv() == 10
    small = FileCache(cache, 10)
    put(small, B)
    assert (cache / sha256).is_file()
    kill(other)
    put(small, C)
    assert not (cache / sha256).is_file()


def test_processes_that_want_one_file_download_it_once(server, tmp_path):
    (server.folder / "a.tar").write_bytes(b"x" * 10_000)
    sha256 = sha256_of(server.folder / "a.tar")
    server.faults["a.tar"] = ["hold"]
    readers = [reader(server, tmp_path / "cache", "a.tar", sha256) for _ in range(3)]
    assert server.holding.wait(60)
    server.released.set()
    for process, pipe in readers:
        assert pipe.recv() == 10_000
        pipe.send("close")
        assert status(process) == 0
    assert server.asked["a.tar"] == 1
