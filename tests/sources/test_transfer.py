import contextlib
import hashlib
import logging
import shutil
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from tests.refusals import refused
from tests.sources.conftest import SOON, publish
from vlmtune.sources import transfer
from vlmtune.sources.addresses import MIRROR, ServerRequest, request_of
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.transfer import Downloader, WantedFile
from vlmtune.storage.remote.download import DownloadError

ADDRESS = "https://host.example/set/rows.bin"
CONTENT = bytes(range(256)) * 8000
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def downloader(tmp_path):
    return Downloader(Ledger(tmp_path / "data"), SOON)


@pytest.fixture
def name(mirror):
    return publish(mirror, ADDRESS, CONTENT)


def wanted(tmp_path, address=ADDRESS, **known):
    return WantedFile(tmp_path / "data" / "rows.bin", (address,), **known)


def left(tmp_path):
    return [path for path in (tmp_path / "data").rglob("*") if ".part" in path.name]


@pytest.mark.parametrize(
    ("faults", "asked"),
    [
        ([], 1),
        (["drop"], 2),
        (["500", "busy 0"], 3),
        (["truncate", "truncate"], 3),
        (["lie"], 2),
        (["short"], 2),
        (["range"], 2),
        (["truncate", "range"], 3),
        (["truncate", "newer"], 3),
    ],
)
def test_a_file_comes_whole_whatever_the_server_does(
    downloader, mirror, name, tmp_path, faults, asked
):
    mirror.faults[name] = list(faults)
    file = wanted(tmp_path, bytes=len(CONTENT) if "short" not in faults else None, checksum=SHA256)
    downloader.fetch(file)
    assert file.path.read_bytes() == CONTENT
    assert mirror.asked[name] == asked
    assert not left(tmp_path)
    assert Ledger(tmp_path / "data").has(file.path)


@pytest.mark.parametrize("silent", [False, True])
def test_a_broken_download_goes_on_where_it_stopped(downloader, mirror, name, tmp_path, silent):
    mirror.silent = silent
    mirror.faults[name] = ["truncate", "truncate"]
    downloader.fetch(wanted(tmp_path))
    first, second = mirror.starts
    # The last chunk before the break may be lost.
    assert len(CONTENT) // 2 - transfer.CHUNK <= first <= len(CONTENT) // 2
    assert first < second
    assert (tmp_path / "data/rows.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("killed_before_its_first_byte", [False, True])
def test_what_came_of_an_older_version_is_not_mixed_with_a_newer_one(
    mirror, name, tmp_path, monkeypatch, killed_before_its_first_byte
):
    once = Downloader(Ledger(tmp_path / "data"), transfer.Patience(1, 2.0, 0.01, 0.01))
    mirror.faults[name] = ["truncate"]
    with pytest.raises(DownloadError):
        once.fetch(wanted(tmp_path))
    assert left(tmp_path)
    newer = CONTENT[::-1]
    publish(mirror, ADDRESS, newer)

    def killed(*arguments):
        raise KeyboardInterrupt

    if killed_before_its_first_byte:
        with monkeypatch.context() as patch:
            patch.setattr(transfer, "_write", killed)
            with pytest.raises(KeyboardInterrupt):
                once.fetch(wanted(tmp_path))
    once.fetch(wanted(tmp_path))
    assert (tmp_path / "data/rows.bin").read_bytes() == newer


def test_an_empty_file_is_none(downloader, mirror, tmp_path):
    publish(mirror, ADDRESS, b"")
    with pytest.raises(DownloadError, match="has 0 bytes, not any content"):
        downloader.fetch(wanted(tmp_path))


def test_a_server_that_cannot_cut_gives_the_whole_file_again(downloader, mirror, name, tmp_path):
    mirror.ranges = False
    mirror.faults[name] = ["truncate"]
    downloader.fetch(wanted(tmp_path))
    assert (tmp_path / "data/rows.bin").read_bytes() == CONTENT
    assert mirror.starts == []


@pytest.mark.parametrize(
    ("faults", "known", "message"),
    [
        (["404"], {}, "status 404"),
        (["page Sorry"] * 9, {}, "is a page in place of the file"),
        (["page Too many users have viewed this"] * 9, {}, "quota is used up.*--from FOLDER"),
        ([], {"bytes": 5}, f"has {len(CONTENT)} bytes, not 5"),
        ([], {"checksum": "md5:" + "0" * 32}, "another md5 than it should"),
        (["lie"] * 9, {"checksum": SHA256}, "another sha256 than it should"),
        (["500"] * 9, {}, "status 500 .3 attempts"),
        (["drop"] * 9, {}, "the connection to its server failed"),
        (["truncate"] * 99, {}, "the connection to its server failed"),
    ],
)
def test_what_is_not_the_file_never_gets_its_name(
    downloader, mirror, name, tmp_path, faults, known, message
):
    mirror.faults[name] = list(faults)
    if faults[:1] == ["truncate"]:
        mirror.ranges = False
    with pytest.raises(DownloadError, match=message):
        downloader.fetch(wanted(tmp_path, **known))
    assert not (tmp_path / "data/rows.bin").exists()


def test_a_host_without_an_answer_is_asked_once_for_further_files(
    downloader, mirror, name, tmp_path
):
    mirror.faults[name] = ["drop"] * 5
    for tries in (3, 1):
        with pytest.raises(DownloadError, match=f"{tries} attempt"):
            downloader.fetch(wanted(tmp_path))
    # The fifth drop is left, so this fails once more, and then it comes.
    with pytest.raises(DownloadError, match="1 attempt"):
        downloader.fetch(wanted(tmp_path))
    downloader.fetch(wanted(tmp_path))
    assert (tmp_path / "data/rows.bin").read_bytes() == CONTENT


def test_a_server_that_drips_is_given_up(downloader, tmp_path, monkeypatch):
    """It sends a byte at a time, far from a whole chunk."""
    monkeypatch.setattr(transfer, "WINDOW", 0.2)

    def drip(connection):
        with connection, contextlib.suppress(OSError):  # the client goes away
            connection.recv(2**16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
            for _ in range(5000):
                connection.sendall(b"x")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/rows.bin"
        accept = threading.Thread(target=lambda: drip(server.accept()[0]), daemon=True)
        accept.start()
        once = Downloader(Ledger(tmp_path / "data"), transfer.Patience(tries=1))
        with pytest.raises(DownloadError, match="slower than 1000 bytes a second"):
            once.fetch(wanted(tmp_path, address))
        accept.join(10)
    assert not accept.is_alive()


@pytest.mark.parametrize(
    "page",
    [
        b"<html>",
        b"\xef\xbb\xbf <!-- a --> <!DOCTYPE html>",
        b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    ],
)
def test_a_page_is_no_file(downloader, mirror, tmp_path, page):
    publish(mirror, ADDRESS, page)
    with pytest.raises(DownloadError, match="is a page in place of the file"):
        downloader.fetch(wanted(tmp_path))
    assert not left(tmp_path)
    markup = "https://host.example/set/drawing.svg"
    publish(mirror, markup, page)
    file = WantedFile(tmp_path / "data/drawing.svg", (markup,))
    downloader.fetch(file)
    assert file.path.read_bytes() == page


def test_no_secret_is_noted(mirror, tmp_path, monkeypatch):
    monkeypatch.delenv(MIRROR)
    (mirror.folder / "rows.bin").write_bytes(CONTENT)
    mirror.faults["rows.bin"] = ["truncate"]
    address = f"{mirror.url.replace('://', '://me:PASSWORD@')}/rows.bin?sig=SECRET"
    once = Downloader(Ledger(tmp_path / "data"), transfer.Patience(1, 2.0, 0.01, 0.01))
    with pytest.raises(DownloadError):
        once.fetch(wanted(tmp_path, address))
    notes = [path.read_text() for path in (tmp_path / "data").glob("*.json")]
    once.fetch(wanted(tmp_path, address))
    notes.append((tmp_path / "data/.downloads/files.jsonl").read_text())
    assert len(notes) == 2
    assert not any(word in note for note in notes for word in ("PASSWORD", "SECRET"))


def test_a_version_that_promises_no_bytes_is_not_resumed(downloader, mirror, name, tmp_path):
    mirror.weak = True
    mirror.faults[name] = ["truncate"]
    downloader.fetch(wanted(tmp_path))
    assert (tmp_path / "data/rows.bin").read_bytes() == CONTENT
    assert mirror.targets == [f"/{name}"] * 2
    assert set(mirror.requested_ranges) == {None}


def test_mirrors_are_tried_in_turn(downloader, mirror, tmp_path):
    second = "https://other.example/rows.bin"
    publish(mirror, second, CONTENT)
    downloader.fetch(WantedFile(tmp_path / "data/rows.bin", (ADDRESS, second)))
    arrival = Ledger(tmp_path / "data").get(tmp_path / "data/rows.bin")
    assert arrival is not None
    assert arrival.address == second


def test_a_gate_says_where_its_terms_are(downloader, mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    address = "hub:facebook/winoground@b400e17/data/examples.jsonl"
    name = publish(mirror, address, CONTENT)
    mirror.faults[name] = ["403"]
    with pytest.raises(DownloadError) as caught:
        downloader.fetch(wanted(tmp_path, address))
    line = str(caught.value)
    assert "accept them at https://huggingface.co/datasets/facebook/winoground" in line
    # The token is the hub's: a mirror does not get it.
    assert mirror.authorizations == [None]
    assert "secret" not in line


def test_the_token_goes_to_the_hub_and_into_no_text(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    request = request_of("hub:facebook/winoground@b400e17/data/examples.jsonl")
    assert request.headers == {"Authorization": "Bearer hf_secret"}
    assert "secret" not in repr(request)
    assert request_of("https://example.org/a").headers == {}


def test_the_token_stays_with_its_host(downloader, mirror, name, tmp_path, monkeypatch):
    """The hub sends on to another host, which needs no token; a broken file goes on there."""
    token = "Bearer hf_secret"
    request = ServerRequest(f"{mirror.url}/file", ADDRESS, {"Authorization": token})
    monkeypatch.setattr(transfer, "request_of", lambda address: request)
    other = f"{mirror.url.replace('127.0.0.1', 'localhost')}/{name}"
    mirror.faults = {"file": [f"to {other}"] * 2, name: ["truncate"]}
    downloader.fetch(wanted(tmp_path, checksum=SHA256))
    assert mirror.authorizations == [token, None, token, None]
    assert len(mirror.starts) == 1


def test_the_ledger_names_files_that_changed_and_passes_over_a_torn_line(
    downloader, mirror, name, tmp_path, caplog
):
    downloader.fetch(wanted(tmp_path))
    publish(mirror, ADDRESS, CONTENT * 2)
    with caplog.at_level(logging.WARNING, "vlmtune"):
        downloader.fetch(wanted(tmp_path))
    assert "rows.bin changed at its source" in caplog.text
    ledger = tmp_path / "data/.downloads/files.jsonl"
    with ledger.open("a") as file:
        file.write('\n{"path": "oth')
    downloader.fetch(WantedFile(tmp_path / "data/second.bin", (ADDRESS,)))
    read = Ledger(tmp_path / "data")
    assert read.has(tmp_path / "data/rows.bin")
    assert read.has(tmp_path / "data/second.bin")


def test_the_disk_is_asked_first(downloader, mirror, name, tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**7, 9 * 10**6, 10**6))
    with refused("2 MB free on the disk of .*, got 1 MB: .* by --data-root or VLMTUNE_DATA"):
        downloader.fetch(wanted(tmp_path))


def test_a_mirror_has_each_file_of_a_drive_at_a_path_of_its_own(mirror):
    one, other = (urlsplit(request_of(f"drive:{name}").url) for name in ("1kX2", "2iCHE"))
    assert one.path == "/drive.usercontent.google.com/1kX2"
    assert other.path != one.path
    assert not one.query
