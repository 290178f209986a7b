"""The search page: what it shows, escapes and refuses."""

import re
import socket
import struct
import threading
import time
from base64 import b64encode
from hashlib import sha256
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from tests.refusals import refused
from tests.search.test_index import model_of
from tests.tiny import halves
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.report import html
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
    assert (answer.status, len(found(page.decode()))) == (200, 2)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert policy.endswith("frame-ancestors 'none'")
    for number in (0, 1, 2):
        answer, content = get(server, f"/image/{number}")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert Image.open(BytesIO(content)).size <= (512, 512)


def post(server, content, name="mine.png", **headers):
    """Sends a picture as the form of the page does."""
    edge = "edge"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="picture"; filename="{name}"\r\n'
    body = head.encode() + b"Content-Type: image/png\r\n\r\n" + content + b"\r\n--edge--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary={edge}", **headers}
    connection = HTTPConnection(*server.server_address, timeout=60)
    connection.request("POST", "/", body, headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def found(page):
    """The numbers of the images on a page, best first."""
    return [int(number) for number in re.findall(r'src="/image/(\d+)" alt="[^"]*, rank', page)]


def test_it_shows_images_that_are_like_one(server, index):
    hits = [index.paths.index(path) for path, _ in index.similar(1, 2)]
    page = get(server, "/?like=1")[1].decode()
    assert found(page) == hits
    assert len(hits) == 2
    assert 1 not in hits  # an image is not like itself
    assert get(server, "/large/1")[0].status == 200


def test_a_picture_that_is_dropped_is_searched_by(server, index):
    """The file of an indexed image is found first, with the cosine of a vector with itself."""
    answer, page = post(server, index.paths[1].read_bytes(), name="<i>.png")
    assert (answer.status, found(page)[0]) == (200, 1)
    assert ">1.0000<" in page
    assert "&lt;i&gt;.png" in page
    assert "<i>" not in page


def test_what_is_no_picture_too_large_or_foreign_is_refused(server, index, monkeypatch):
    answer, shown = post(server, b"no picture")
    assert (answer.status, found(shown)) == (200, [])
    assert "mine.png: image refused" in shown
    assert post(server, b"", **{"Content-Type": "text/plain"})[0].status == 400
    content = index.paths[0].read_bytes()
    assert post(server, content, Origin="http://evil.example")[0].status == 403
    assert post(server, content, Origin="null")[0].status == 403
    assert post(server, content, Origin=server.address)[0].status == 200
    monkeypatch.setattr(page, "MOST_BYTES", 100)
    assert post(server, content)[0].status == 413


def test_the_page_has_the_design_of_reports_and_texts_are_escaped(server):
    answer, content = get(server, "/")
    page = content.decode()
    assert "Search 3 images" in page
    assert found(page) == []
    assert '<meta name="viewport"' in page
    style = Path(html.__file__).with_name("style.css").read_text(encoding="utf-8")
    assert style.strip() in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in answer.headers["Content-Security-Policy"]
    page = get(server, f"/?q={quote('<script>x</script>' + chr(34))}")[1]
    assert b"<script>x" not in page
    assert b"&lt;script&gt;x&lt;/script&gt;&#34;" in page
    assert b"expected words" in page  # the error of the query, shown
    pages = get(server, "/?q=red")[1] + get(server, "/?q=blue")[1] + get(server, "/?q=dog")[1]
    assert b"<b>&" not in pages
    assert b"&lt;b&gt;&amp;.png" in pages


def test_other_files_are_not_served_and_other_machines_not_answered(server):
    names = ("3", "-1", "x", "", "99999999999999", "../secret.txt", "%2e%2e/secret.txt", "%D9%A1")
    for path in ("/secret.txt", *(f"/image/{name}" for name in names)):
        answer, content = get(server, path)
        assert (answer.status, content) == (404, b""), path
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/", f"localhost:{port}")[0].status == 200
    for host in ("evil.example", f"evil.example:{port}", "localhost"):
        assert get(server, "/image/0", host)[0].status == 403


def test_a_client_that_goes_away_prints_nothing_but_another_error_is_shown(
    server, capfd, monkeypatch
):
    threads = threading.active_count()
    client = socket.create_connection(server.server_address)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # with a reset
    assert get(server, "/")[0].status == 200  # so the other was accepted before
    deadline = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(server, "page", lambda query, like: 1 / 0)
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
    together = threading.Barrier(page.MOST_DECODED)

    def slow(path, side):
        decoding.append(path)
        most.append(len(decoding))
        together.wait(300)  # else a slow machine decodes one after the other
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
