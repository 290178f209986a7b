"""A server of files on loopback that can fail in every way a real one does."""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


class FaultyServer(ThreadingHTTPServer):
    """Serves the files of a folder, each request for a name after the next of its faults.

    Faults: "500", "403", "drop" (closes before the answer), "truncate" (closes in the middle),
    "short" (half the bytes as if they were all), "repeat" (all bytes twice), "endless" (bytes
    without end), "lie" (one bit flipped), "stall" (half, then silence), "hold" (nothing until
    `released` is set, then the file), "busy ..." (503 with this in `Retry-After`).
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.faults: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()
        self.targets: list[str] = []
        self.authorizations: list[str | None] = []
        self.released, self.holding = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no fault of a test."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer

    def do_GET(self) -> None:
        server, name = self.server, unquote(urlsplit(self.path).path).lstrip("/")
        server.asked[name] += 1
        server.targets.append(self.path)
        server.authorizations.append(self.headers.get("Authorization"))
        waiting = server.faults.get(name, [])
        fault = waiting.pop(0) if waiting else ""
        file = server.folder / name
        if fault.isdigit() or not file.is_file():
            return self.send_error(int(fault or 404))
        if fault.startswith("busy"):
            self.send_response(503)
            self.send_header("Retry-After", fault.removeprefix("busy "))
            return self.end_headers()
        if fault == "drop":
            return None
        if fault == "hold":
            server.holding.set()
            server.released.wait()
        return self._send(file.read_bytes(), fault)

    def _send(self, content: bytes, fault: str) -> None:
        half = len(content) // 2
        body = {
            "truncate": content[:half],
            "stall": content[:half],
            "short": content[:half],
            "repeat": content * 2,
            "lie": content[:-1] + bytes([content[-1] ^ 1]),
        }.get(fault, content)
        self.send_response(200)
        if fault != "endless":
            stated = content if fault in ("truncate", "stall") else body
            self.send_header("Content-Length", str(len(stated)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if fault == "stall":
            self.server.holding.set()
            self.server.released.wait()
        while fault == "endless":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """A test prints nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """A running server of the folder `tmp_path / "remote"`."""
    folder = tmp_path / "remote"
    folder.mkdir()
    made = FaultyServer(folder)
    thread = threading.Thread(target=made.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield made
    made.released.set()
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of this machine must not stand between a test and loopback."""
    for name in os.environ:
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def digest() -> Callable[[Path], str]:
    """Returns a function that gives the sha256 of a file."""
    return lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
