"""The search page: what it shows, escapes and refuses."""

import socket
import struct
import threading
import time
from http.client import HTTPConnection
from io import BytesIO
from urllib.parse import quote

import pytest
from PIL import Image

from tests.refusals import refused
from tests.search.test_index import model_of
from tests.tiny import halves
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.search import Index, build_index, page
from vlmtune.search.page import PageServer


@pytest.fixture(scope="module")
def index(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    model = model_of(model_folder, ZeroShot())
    for i, name in enumerate(("a", "<b>&", "c")):
        halves("red", "blue", i).save(folder / f"{name}.png")
    (folder / "secret.txt").write_text("secret")
    build_index([folder], model, folder / "index", "x")
    return Index.open(folder / "index", model)


@pytest.fixture
def server(index):
    server = PageServer(index, top=2)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server, path, host=None):
    connection = HTTPConnection(*server.server_address, timeout=60)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_it_shows_the_images_found(server):
    answer, page = get(server, "/?q=red")
    assert (answer.status, page.count(b"<img")) == (200, 2)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert policy.endswith("frame-ancestors 'none'")
    for number in (0, 1, 2):
        answer, content = get(server, f"/image/{number}")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert Image.open(BytesIO(content)).size <= (256, 256)


def test_texts_are_escaped(server):
    page = get(server, f"/?q={quote('<script>x</script>' + chr(34))}")[1]
    assert b"<script>" not in page
    assert b"&lt;script&gt;x&lt;/script&gt;&quot;" in page
    assert b"expected words" in page  # the error of the query, shown
    pages = get(server, "/?q=red")[1] + get(server, "/?q=blue")[1] + get(server, "/?q=dog")[1]
    assert b"<b>" not in pages


def test_other_files_are_not_served(server):
    names = ("3", "-1", "x", "", "99999999999999", "../secret.txt", "%2e%2e/secret.txt", "%D9%A1")
    for path in ("/secret.txt", *(f"/image/{name}" for name in names)):
        answer, content = get(server, path)
        assert (answer.status, content) == (404, b""), path


def test_only_this_machine_is_answered(server):
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/", f"localhost:{port}")[0].status == 200
    for host in ("evil.example", f"evil.example:{port}", "localhost"):
        assert get(server, "/image/0", host)[0].status == 403


def test_a_client_that_goes_away_prints_nothing(server, capfd):
    threads = threading.active_count()
    client = socket.create_connection(server.server_address)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # with a reset
    assert get(server, "/")[0].status == 200  # so the other was accepted before
    deadline = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_another_error_is_shown(server, capfd, monkeypatch):
    monkeypatch.setattr(server, "page", lambda query: 1 / 0)
    with pytest.raises(OSError):  # noqa: PT011
        get(server, "/")
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_silent_client_is_left_after_a_while(server, monkeypatch):
    monkeypatch.setattr(page._Handler, "timeout", 0.1)
    with socket.create_connection(server.server_address, timeout=60) as client:
        client.sendall(b"GET / HT")
        assert client.recv(1) == b""


def test_no_more_clients_are_answered_at_a_time(server, monkeypatch):
    monkeypatch.setattr(page, "PATIENCE", 0.1)
    server._clients = threading.BoundedSemaphore(1)
    with socket.create_connection(server.server_address, timeout=60) as silent:
        silent.sendall(b"GET / HT")
        with socket.create_connection(server.server_address, timeout=60) as other:
            assert other.recv(1) == b""
    monkeypatch.setattr(page, "PATIENCE", 60)
    assert get(server, "/")[0].status == 200


def test_few_images_are_decoded_at_a_time(server, monkeypatch):
    decoding, most = [], []

    def slow(path):
        decoding.append(path)
        most.append(len(decoding))
        time.sleep(0.05)
        decoding.remove(path)
        return b""

    monkeypatch.setattr(page, "thumbnail", slow)
    threads = [threading.Thread(target=get, args=(server, f"/image/{n % 3}")) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (6, page.MOST_DECODED)


def test_a_port_in_use_is_refused(index, server):
    with refused("expected a free port for the page"):
        PageServer(index, server.server_address[1])
