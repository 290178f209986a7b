"""Downloads from a server that fails, and what their messages hold."""

import errno
import hashlib
import logging
import threading
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.faulty_server import FaultyServer
from vlmtune.errors import UserError
from vlmtune.storage.remote import download as downloads
from vlmtune.storage.remote.address import Address, is_remote
from vlmtune.storage.remote.download import DownloadError, Patience, check_content, download

CONTENT = bytes(range(256)) * 300
SHA256 = hashlib.sha256(CONTENT).hexdigest()
# A busy machine may pause for a second: only a try that must end by silence has a short limit.
QUICK = Patience(tries=3, timeout=60.0, wait=0.001)
SHORT = Patience(tries=9, timeout=0.8, wait=0.001)
CHECK = partial(check_content, size=len(CONTENT), checksum=f"sha256:{SHA256}")


def get(server: FaultyServer, part: Path, patience: Patience = QUICK, name: str = "a.tar") -> None:
    download(Address(server.url), name, part, len(CONTENT), CHECK, patience)


@pytest.fixture
def part(server: FaultyServer, tmp_path: Path) -> Path:
    (server.folder / "a.tar").write_bytes(CONTENT)
    (tmp_path / "local").mkdir()
    return tmp_path / "local" / "part"


@pytest.mark.parametrize("fault", ["500", "429", "drop", "truncate", "repeat", "lie", "stall"])
def test_a_failed_try_is_followed_by_another(server, part, fault):
    faults = [fault] if fault == "stall" else [fault, fault]
    server.faults["a.tar"] = list(faults)
    get(server, part, SHORT if fault == "stall" else QUICK)
    assert part.read_bytes() == CONTENT
    asked, needed = server.asked["a.tar"], len(faults) + 1
    assert asked == needed or (asked > needed and fault == "stall")
    assert [file.name for file in part.parent.iterdir()] == ["part"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "the server answered with status 500"),
        ("drop", "ServerDisconnectedError"),
        ("truncate", "ClientPayloadError"),
        ("short", f"has {len(CONTENT) // 2} bytes, not {len(CONTENT)}"),
        ("repeat", f"has more than {len(CONTENT)} bytes"),
        ("endless", f"has more than {len(CONTENT)} bytes"),
        ("lie", "has another sha256 than it should"),
    ],
)
def test_the_last_failed_try_is_reported(server, part, fault, reason):
    server.faults["a.tar"] = [fault] * 9
    with pytest.raises(DownloadError, match=r"^cannot be read after 3 attempts: ") as caught:
        get(server, part)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    # aiohttp itself repeats a request whose connection was closed before an answer.
    assert server.asked["a.tar"] == 3 or fault == "drop"
    assert list(part.parent.iterdir()) == []


def end_threads() -> None:
    """Waits for the tries that were given up."""
    for thread in threading.enumerate():
        if thread.name == "vlmtune download":
            thread.join(60)
            assert not thread.is_alive()


class Silent:
    """A file system without a timeout of its own."""

    released = threading.Event()
    ended = threading.Event()

    def get_file(self, rpath, lpath, callback=None, **kwargs):
        try:
            assert self.released.wait(60)
            Path(lpath).write_bytes(CONTENT)
            callback.relative_update(len(CONTENT))
        finally:
            self.ended.set()


def test_a_file_system_without_a_timeout_is_given_up_and_leaves_nothing(part, monkeypatch):
    monkeypatch.setattr(downloads, "file_system", lambda *_: (Silent(), "a"))
    size, patience = 10**9, Patience(tries=1, timeout=0.1)  # a size with a far limit of time
    with pytest.raises(DownloadError, match=r"no byte came for 0\.1 seconds"):
        download(Address("silent://a"), "a.tar", part, size, CHECK, patience)
    Silent.released.set()
    end_threads()
    assert Silent.ended.is_set()
    assert list(part.parent.iterdir()) == []


class Trickle:
    """A file system that is never silent for long, and never ends."""

    def get_file(self, rpath, lpath, callback=None, **kwargs):
        with Path(lpath).open("wb", buffering=0) as file:
            while True:
                threading.Event().wait(0.02)
                file.write(b"x")
                callback.relative_update(0)


def test_a_trickle_of_bytes_ends_a_try(part, monkeypatch):
    monkeypatch.setattr(downloads, "file_system", lambda *_: (Trickle(), "a"))
    with pytest.raises(DownloadError, match="came slower than 50000 bytes a second"):
        download(Address("trickle://a"), "a.tar", part, 10, CHECK, Patience(tries=1, timeout=0.8))
    end_threads()
    assert list(part.parent.iterdir()) == []


class NoCredentialsError(Exception):
    """As botocore names it."""


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (NoCredentialsError("no key"), DownloadError, "cannot be read: NoCredentialsError"),
        (OSError(errno.ENOSPC, "full"), UserError, "expected to write 76800 bytes .*No space"),
    ],
)
def test_no_credentials_and_a_full_disk_are_tried_once(part, monkeypatch, error, raised, message):
    tries = []

    class Failing:
        def get_file(self, *_, **__):
            tries.append(error)
            raise error

    monkeypatch.setattr(downloads, "file_system", lambda *_: (Failing(), "a"))
    with pytest.raises(raised, match=message):
        download(Address("failing://a"), "a.tar", part, len(CONTENT), CHECK, QUICK)
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("403", "the server answered with status 403"), ("404", "there is no such file")],
)
def test_what_no_try_can_change_is_tried_once(server, part, fault, reason):
    server.faults["a.tar"] = [fault]
    with pytest.raises(DownloadError, match=f"^cannot be read: {reason}$"):
        get(server, part)
    assert server.asked["a.tar"] == 1


def test_pauses_double_up_to_a_limit_with_jitter():
    patience = Patience(wait=2.0, longest=10.0)
    for failed, most in [(1, 2), (2, 4), (3, 8), (4, 10), (9, 10)]:
        pauses = {patience.pause(failed) for _ in range(200)}
        assert len(pauses) > 100
        assert 0.5 * most <= min(pauses) < 0.75 * most
        assert 1.25 * most < max(pauses) <= 1.5 * most


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("3", 3.0, 4.5),
        ("3600", 5.0, 7.5),  # no longer than the longest wait
        ("Wed, 21 Oct 2099 07:28:00 GMT", 5.0, 7.5),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0, 0.1),
        ("soon", 0.0, 0.1),
    ],
)
def test_a_server_that_asks_for_time_gets_it(server, part, monkeypatch, said, least, most):
    waited, pause = [], Patience.pause

    def noted(patience, failed, asked):
        waited.append(pause(patience, failed, asked))
        return 0.0

    monkeypatch.setattr(Patience, "pause", noted)
    server.faults["a.tar"] = [f"busy {said}"]
    get(server, part, Patience(tries=2, timeout=60.0, wait=0.001, longest=5.0))
    (seconds,) = waited
    assert least <= seconds <= most


def test_names_are_quoted_and_queries_kept(server, part, monkeypatch):
    monkeypatch.setenv("QUERY", "key=1&other=a%2Fb")
    (server.folder / "b c#1.tar").write_bytes(CONTENT)
    address = Address(f"{server.url}?$QUERY")
    download(address, "b c#1.tar", part, len(CONTENT), CHECK, QUICK)
    (target,) = server.targets
    assert target.startswith("/b%20c%231.tar?")
    assert parse_qs(target.partition("?")[2]) == {"key": ["1"], "other": ["a/b"]}


def test_user_and_password_reach_the_server_alone(server, part, monkeypatch, caplog):
    monkeypatch.setenv("PASSWORD", "s3cret%21")
    host = server.url.removeprefix("http://")
    address = Address(f"http://reader:$PASSWORD@{host}")
    server.faults["a.tar"] = ["500", "lie", "truncate"]
    with caplog.at_level(logging.DEBUG, "vlmtune"), pytest.raises(DownloadError) as caught:
        download(address, "a.tar", part, len(CONTENT), CHECK, QUICK)
    assert server.authorizations[0] == "Basic cmVhZGVyOnMzY3JldCE="  # reader:s3cret!
    assert caught.value.__suppress_context__
    for text in (str(caught.value), caplog.text, str(address), repr(address)):
        assert "s3cret" not in text
    assert f"http://{host}/a.tar: the server answered with status 500" in caplog.text


def test_messages_of_libraries_lose_secrets(monkeypatch):
    monkeypatch.setenv("TOKEN", "sig=a/b+c")
    address = Address("https://host/set?$TOKEN")
    dirty = "GET https://u:p@host/set/x.tar?sig=a/b+c: 'https://h/y#z', sig%3Da%2Fb%2Bc\nsig=a/b+c"
    assert address.clean(dirty) == "GET https://host/set/x.tar 'https://h/y', $TOKEN $TOKEN"
    assert len(address.clean("x" * 1000)) == 203


@pytest.mark.parametrize(
    "url",
    [
        "https://user:secret@host/set",
        "https://secret@host/set",
        "https://host/set?token=secret",
        "https://user:$A-secret@host/set",
        "https://host/set;sig=secret",
        "https://user:a/secret@host/set",
        "simplecache::https://user:secret@host/set",
        "zip://*.tar::https://user:secret@host/set.zip",
    ],
)
def test_secrets_do_not_belong_into_a_config(url):
    assert is_remote(url)
    with pytest.raises(UserError, match=r"^expected (a|the) URL") as caught:
        Address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://$TOKEN@host/set",
        "https://user:${A}@host/set",
        "https://host/set?$QUERY",
        "https://host:$PORT/set;$SIGNATURE",
        "http://[::1]:8000/set",
        "hf://datasets/user/name@main/set",
        "s3://bucket/set",
    ],
)
def test_names_of_variables_do(url):
    assert Address(url).given == url
    assert "$" not in str(Address(url)).replace(":$PORT", "")


def test_a_missing_variable_and_an_unknown_scheme_are_named(monkeypatch, part):
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(UserError, match=r"variable NOWHERE for https://host/set, got none: set it"):
        _ = Address("https://user:$NOWHERE@host/set").url
    with pytest.raises(UserError, match=r"^expected an address that fsspec reads, got nope://a"):
        download(Address("nope://a"), "a.tar", part, 1, CHECK, QUICK)


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_a_missing_package_is_named(part, monkeypatch, scheme, package):
    def missing(*_, **__):
        raise ImportError(f"Install {package}")

    monkeypatch.setattr(downloads, "url_to_fs", missing)
    with pytest.raises(UserError, match=rf"got {scheme}://.* \(Install {package}\): .*pip install"):
        download(Address(f"{scheme}://bucket/{package}"), "a.tar", part, 1, CHECK, QUICK)


def test_a_folder_of_this_machine_is_a_storage_too(part, tmp_path):
    address = Address(f"file://{tmp_path / 'remote'}")
    download(address, "a.tar", part, len(CONTENT), CHECK, QUICK)
    assert part.read_bytes() == CONTENT
