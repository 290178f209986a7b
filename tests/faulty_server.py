"""A server of files on loopback that can fail in every way a real one does."""

import hashlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


class FaultyServer(ThreadingHTTPServer):
    """Serves the files of a folder, each request for a name after the next of its faults.

    Faults: "500", "403", "drop" (closes before the answer), "truncate" (closes in the middle),
    "short" (half the bytes as if they were all), "repeat" (all bytes twice), "endless" (bytes
    without end), "lie" (one bit flipped), "stall" (half, then silence), "hold" (nothing until
    `released` is set, then the file), "busy ..." (503 with this in `Retry-After`), "page ..." (a
    page of HTML with these words), "to ..." (a redirect to that address), "range" (the whole file
    as if its start had been asked for), "newer" (the rest, of another version).

    With `ranges` it answers requests for the rest of a file. Each answer waits `pause` seconds.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.ranges = False
        self.weak = False  # versions that do not promise the same bytes
        self.silent = False  # no version with the rest of a file
        self.pause = 0.0
        self.faults: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()
        self.targets: list[str] = []
        self.starts: list[int] = []
        self.requested_ranges: list[str | None] = []
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
        server.requested_ranges.append(self.headers.get("Range"))
        waiting = server.faults.get(name, [])
        fault = waiting.pop(0) if waiting else ""
        file = server.folder / name
        time.sleep(server.pause)
        if fault.startswith("to "):
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("to "))
            self.send_header("Content-Length", "0")
            return self.end_headers()
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
        content = file.read_bytes()
        if fault.startswith("page"):
            content = f"<!DOCTYPE html><html>{fault.removeprefix('page ')}</html>".encode()
        return self._send(content, fault)

    def _send(self, content: bytes, fault: str) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        start = self._start(content, tag)
        size = len(content)
        if fault == "range":
            start = 0
        content = content[start:]
        half = len(content) // 2
        body = {
            "truncate": content[:half],
            "stall": content[:half],
            "short": content[:half],
            "repeat": content * 2,
            "lie": content[:-1] + bytes(byte ^ 1 for byte in content[-1:]),
        }.get(fault, content)
        partial = start > 0 or fault == "range"
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        if self.server.ranges and not (partial and self.server.silent):
            version = '"newer"' if fault == "newer" else tag
            self.send_header("ETag", f"W/{version}" if self.server.weak else version)
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

    def _start(self, content: bytes, tag: str) -> int:
        """First byte that is asked for; 0 where the file is another one than the client has."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked is None or not self.server.ranges or self.headers.get("If-Range") != tag:
            return 0
        start = int(asked[1])
        self.server.starts.append(start)
        return start if start < len(content) else 0

    def log_message(self, format: str, *args: object) -> None:
        """A test prints nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[FaultyServer]:
    """Runs a server of a folder; no proxy of this machine stands before it."""
    folder.mkdir(exist_ok=True)
    made = FaultyServer(folder)
    thread = threading.Thread(target=made.serve_forever, args=[0.01], daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
                patch.delenv(name)
        yield made
    made.released.set()
    made.shutdown()
    made.server_close()
    thread.join()
