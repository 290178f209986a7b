"""A search page for one person, on this machine alone.

In: an opened index. Out: a page with a search field and the images found, over HTTP.
Never: a file that is not in the index, a text that is not escaped, or an answer to another machine.
"""

import io
import sys
import threading
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

from vlmtune.data.images import open_image
from vlmtune.errors import UserError
from vlmtune.search.index import Index

HOST, PIXELS = "127.0.0.1", 256
MOST_CLIENTS = 64
"""Connections that are answered at a time, each by its thread; others wait."""
PATIENCE = 5.0
"""Seconds that a client may be silent in a request, and that others wait for a free thread."""
MOST_DECODED = 2
"""Images decoded at a time: the largest takes 192 MB."""
# Other sites can neither show the images nor put the page into a frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>vlmtune search</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
input {{ width: 30em; max-width: 80%; font-size: 1.1em; }}
figure {{ display: inline-block; width: 256px; margin: .5em; vertical-align: top; }}
figcaption {{ overflow-wrap: anywhere; font-size: .8em; }}
</style>
<form><input name="q" value="{query}" autofocus placeholder="a red cube on a blue sphere">
<button>Search {count} images</button></form>
<p>{note}</p>
{figures}
</html>
"""
FIGURE = """<figure><img src="{source}" alt=""><figcaption>{score:.4f} {name}</figcaption>
</figure>
"""


class PageServer(ThreadingHTTPServer):
    """Serves the page of an index on the loopback address.

    Args:
        index: The index.
        port: The port; 0 takes a free one.
        top: Images shown for each query.
        recall: As for `Index.search`.

    Attributes:
        address: The address of the page.

    Raises:
        UserError: The port cannot be used.
    """

    def __init__(self, index: Index, port: int = 0, top: int = 10, recall: int = 100) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"expected a free port for the page, got {port} ({error}): choose another with "
                "--port"
            ) from error
        self.hosts = f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"
        self.address = f"http://{self.hosts[0]}"
        self._index, self._top, self._recall = index, top, recall
        # A picture has a number for an address, so no path of a request ever reaches the disk.
        self._names = {path: f"/image/{i}" for i, path in enumerate(index.paths)}
        self._paths = {name: path for path, name in self._names.items()}
        self._lock = threading.Lock()  # the model answers one query at a time
        self._clients = threading.BoundedSemaphore(MOST_CLIENTS)
        self._decoders = threading.BoundedSemaphore(MOST_DECODED)

    def page(self, query: str) -> str:
        """Returns the page with what the index finds for a query."""
        hits, note = [], ""
        if query.strip():
            try:
                with self._lock:
                    hits = self._index.search(query, self._top, self._recall)
            except UserError as error:
                note = str(error)
        figures = ""
        for path, score in hits:
            name = escape(str(path))
            figures += FIGURE.format(source=self._names[path], score=score, name=name)
        texts = {"query": escape(query), "note": escape(note), "figures": figures}
        return PAGE.format(count=len(self._index), **texts)

    def image(self, name: str) -> bytes | None:
        """Returns the thumbnail of the image that the page names so, if there is one."""
        if name not in self._paths:
            return None
        with self._decoders:
            return thumbnail(self._paths[name])

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection once one is free, or closes the connection."""
        if self._clients.acquire(timeout=PATIENCE):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that went away, as a browser does that stops loading."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE

    def do_GET(self) -> None:
        server = cast(PageServer, self.server)
        if self.headers.get("Host") not in server.hosts:
            # Another site whose name leads to this address could read the images.
            self._answer(HTTPStatus.FORBIDDEN, b"", "text/plain")
            return
        # Any other path is looked up among the images, and is nothing or one of them.
        address = urlsplit(self.path)
        if address.path == "/":
            page = server.page(parse_qs(address.query).get("q", [""])[0])
            self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")
            return
        image = server.image(address.path)
        status = HTTPStatus.NOT_FOUND if image is None else HTTPStatus.OK
        self._answer(status, image or b"", "image/png")

    def _answer(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @override
    def end_headers(self) -> None:
        """Adds what every answer has, those to damaged requests too."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: queries are private."""


def thumbnail(path: Path) -> bytes | None:
    """Returns a small PNG of an image file; None if it cannot be read any more, or is too large."""
    try:
        image = open_image(path, smallest=PIXELS)
    except UserError:
        return None
    image.thumbnail((PIXELS, PIXELS))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
