"""A search page for one person, on this machine alone.

In: an opened index. Out: a page that searches by a caption or a picture, over HTTP.
Never: a file that is not in the index, a text that is not escaped, or an answer to another machine.
"""

import io
import re
import sys
import threading
from base64 import b64encode
from collections.abc import Callable
from email import message_from_bytes
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image
from typing_extensions import override

from vlmtune.data.images import open_image
from vlmtune.errors import UserError
from vlmtune.search.index import Hit, Index

HOST, PIXELS, LARGE = "127.0.0.1", 512, 1600  # sides of a thumbnail and of a large picture
MOST_BYTES = 32_000_000
"""Largest picture that a person can drop on the page, as a file."""
MOST_CLIENTS = 64
"""Connections that are answered at a time, each by its thread; others wait."""
PATIENCE = 5.0
"""Seconds that a client may be silent in a request, and that others wait for a free thread."""
MOST_DECODED = 2
"""Images decoded at a time, and pictures received: the largest takes 192 MB."""
SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
_DIGEST = b64encode(sha256(SCRIPT.encode()).digest()).decode()
# Other sites can neither show the images nor put the page into a frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; "
    f"style-src 'unsafe-inline'; script-src 'sha256-{_DIGEST}'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # so that a form says where it comes from
}


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
        self.hosts = (f"{HOST}:{self.server_port}", f"localhost:{self.server_port}")
        self.address = f"http://{self.hosts[0]}"
        self._index = index
        self._top = top
        self._recall = recall
        # A picture has a number for an address, so no path of a request ever reaches the disk.
        self._numbers = {path: number for number, path in enumerate(index.paths)}
        self._lock = threading.Lock()  # the model answers one query at a time
        self._clients = threading.BoundedSemaphore(MOST_CLIENTS)
        self._decoders = threading.BoundedSemaphore(MOST_DECODED)
        self.uploads = threading.BoundedSemaphore(MOST_DECODED)
        folder = Path(__file__).parent
        environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
        )
        self._template = environment.get_template("page.html")
        style = (folder.parent / "report/style.css").read_text(encoding="utf-8")
        self._style = Markup(style)  # noqa: S704

    def page(self, query: str = "", like: str = "") -> str:
        """Returns the page with what fits a query, or what is like the image of a number."""
        # A request for like images wins over a query.
        number = self._number(like)
        if number is not None:
            path = self._index.paths[number]
            shown = {"source": f"/image/{number}", "name": path.name}
            return self._page(lambda: self._index.similar(number, self._top), like=shown)
        if not query.strip():
            return self._page(list)
        return self._page(lambda: self._index.search(query, self._top, self._recall), query)

    def page_like(self, content: bytes, name: str) -> str:
        """Returns the page with what is like a picture that a person gives."""
        with self._decoders:
            try:
                picture = open_image(content)
            except ValueError as error:  # bytes of something else
                note = " ".join(str(error).split())
                return self._page(list, note=f"{name}: {note}")
        # `_png` shrinks the image that it gets.
        encoded = b64encode(_png(picture.copy(), PIXELS)).decode()
        shown = {"source": f"data:image/png;base64,{encoded}", "name": name}
        return self._page(lambda: self._index.similar(picture, self._top), like=shown)

    def _page(
        self,
        find: Callable[[], list[Hit]],
        query: str = "",
        like: dict[str, str] | None = None,
        note: str = "",
    ) -> str:
        hits: list[Hit] = []
        try:
            with self._lock:
                hits = find()
        except UserError as error:
            note = str(error)
        shown = []
        for path, score in hits:
            facts = {
                "path": str(path),
                "name": path.name,
                "score": score,
                "number": self._numbers[path],
            }
            shown.append(facts)
        title = f"Like {like['name']}" if like else query.strip()
        return self._template.render(
            style=self._style,
            script=Markup(SCRIPT),  # noqa: S704
            title=title,
            query=query,
            count=len(self._index),
            hits=shown,
            like=like,
            note=note,
        )

    def image(self, name: str) -> bytes | None:
        """Returns the picture with an address such as /image/3 or /large/3, if there is one."""
        kind, _, number = name.lstrip("/").partition("/")
        sides = {"image": PIXELS, "large": LARGE}
        position = self._number(number)
        if kind not in sides or position is None:
            return None
        with self._decoders:
            return thumbnail(self._index.paths[position], sides[kind])

    def _number(self, text: str) -> int | None:
        """The position of an image that a request names, if it is one."""
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= len(self._index):
            return None
        return int(text)

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
        if not self._is_local(server):
            return
        # Any other path is looked up among the images, and is nothing or one of them.
        address = urlsplit(self.path)
        if address.path == "/":
            fields = parse_qs(address.query)
            # A field may be given several times: the first one counts.
            query = fields.get("q", [""])[0]
            like = fields.get("like", [""])[0]
            self._show(server.page(query, like))
            return
        image = server.image(address.path)
        status = HTTPStatus.NOT_FOUND if image is None else HTTPStatus.OK
        self._answer(status, image or b"", "image/png")

    def do_POST(self) -> None:
        """Searches by the picture of a form."""
        server = cast(PageServer, self.server)
        if not self._is_local(server):
            return
        # A body without a length, or a larger one, is not even read.
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"[0-9]{1,12}", length) or int(length) > MOST_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"too large", "text/plain")
            return
        if not server.uploads.acquire(timeout=PATIENCE):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"busy", "text/plain")
            return
        try:
            page = self._page_like(server, self.rfile.read(int(length)))
        finally:
            server.uploads.release()
        if page is None:
            self._answer(HTTPStatus.BAD_REQUEST, b"no picture", "text/plain")
        else:
            self._show(page)

    def _page_like(self, server: PageServer, body: bytes) -> str | None:
        """The answer to the first file of a form; None without one."""
        # The parser of e-mails reads forms of several parts, too.
        head = f"Content-Type: {self.headers.get('Content-Type', '')}\r\n\r\n"
        message = message_from_bytes(head.encode() + body)
        for part in message.walk():
            content = part.get_payload(decode=True)
            file = part.get_filename()
            if file and isinstance(content, bytes):
                # Some browsers send a path: only its last part is shown.
                return server.page_like(content, Path(str(file)).name)
        return None

    def _is_local(self, server: PageServer) -> bool:
        """Whether a request is of the page itself; others are answered with a refusal."""
        origin = self.headers.get("Origin")
        page_origins = [f"http://{host}" for host in server.hosts]
        # Another site whose name leads to this address could read the images.
        is_our_host = self.headers.get("Host") in server.hosts
        is_our_origin = origin is None or origin in page_origins
        is_local = is_our_host and is_our_origin
        if not is_local:
            self._answer(HTTPStatus.FORBIDDEN, b"", "text/plain")
        return is_local

    def _show(self, page: str) -> None:
        self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")

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


def thumbnail(path: Path, side: int) -> bytes | None:
    """Returns a small PNG of an image file; None if it cannot be read any more, or is too large."""
    try:
        image = open_image(path, smallest=side)
    except UserError:
        return None
    return _png(image, side)


def _png(image: Image.Image, side: int) -> bytes:
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
