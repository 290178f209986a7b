"""Addresses of files in remote storage, and their form in messages.

In: a URL, whose secrets are names of environment variables. Out: addresses, and clean messages.
Never: a password or a query string in a message, a config or a report.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from vlmtune.errors import UserError

_NAME = r"[A-Za-z][A-Za-z0-9+.\-]*"
_SCHEME = re.compile(rf"(?:{_NAME}::)*({_NAME}://)")  # of a chain too: "simplecache::https://"
_CHAIN = re.compile(rf"^{_NAME}::|::{_NAME}://")
_URL = re.compile(rf"{_NAME}://[^\s'\"<>]+")
_PARAMETERS = re.compile(r";[^/;]*")  # of a path, as in "https://host/set;sig=..."
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SHORT = 4  # a shorter value of a variable is not a secret, and replacing it would garble messages
_LONGEST = 200  # characters of a message of another library


def is_remote(path: str) -> bool:
    """Tells whether a path is a URL.

    Example:
        >>> is_remote("s3://bucket/shards"), is_remote("runs/shards"), is_remote("C:/shards")
        (True, False, False)
        >>> is_remote("simplecache::https://host/shards")
        True
    """
    return _SCHEME.match(path) is not None


def path_or_url(text: str) -> Path | str:
    """Returns a URL as it is, as a path would lose one of its slashes, and else a path.

    Example:
        >>> path_or_url("s3://bucket/shards"), path_or_url("runs/shards") == Path("runs/shards")
        ('s3://bucket/shards', True)
    """
    return text if is_remote(text) else Path(text)


@dataclass(frozen=True)
class Address:
    """The address of a folder in remote storage.

    `$NAME` and `${NAME}` stand for environment variables. They are read when they are needed, so a
    config, a checkpoint and a report hold the name alone.

    The URL itself, `given`, may hold neither a password nor a query string nor parameters, and it
    may be no chain of fsspec ("simplecache::https://...").

    Example:
        >>> address = Address("https://reader:$PASSWORD@host/shards/")
        >>> str(address)
        'https://host/shards'
    """

    given: str

    def __post_init__(self) -> None:
        if _CHAIN.search(self.given):
            raise UserError(
                "expected the URL of one storage, got a chain with '::': name the last URL alone, "
                "as vlmtune caches what it reads"
            )
        try:
            secret = _has_secret(self.given)
        except ValueError:
            raise UserError("expected a URL, got one that cannot be parsed: change it") from None
        if secret:
            raise UserError(
                f"expected a URL without a password or a query string, got one for {self}: put it "
                "into an environment variable, as in https://user:$PASSWORD@host/shards?$QUERY"
            )

    def __str__(self) -> str:
        return _public(self.given)

    @property
    def scheme(self) -> str:
        """What comes before `://`, in lower case."""
        return self.given.partition("://")[0].lower()

    @cached_property
    def _values(self) -> dict[str, str]:
        """The environment variables of the URL, by name."""
        values = {}
        for plain, braced in _VARIABLE.findall(self.given):
            name = plain or braced
            if name not in os.environ:
                raise UserError(
                    f"expected the environment variable {name} for {self}, got none: set it"
                )
            values[name] = os.environ[name]
        return values

    @property
    def url(self) -> str:
        """The complete URL, for the storage alone. It may hold secrets."""
        return _VARIABLE.sub(lambda x: self._values[x[1] or x[2]], self.given)

    def clean(self, text: str) -> str:
        r"""Returns a message of another library in one line, shortened and without secrets.

        Example:
            >>> Address("https://host/a").clean("GET 'https://u:p@host/a?key=1'\n failed")
            "GET 'https://host/a' failed"
        """
        text = _URL.sub(lambda url: _public(url[0]), text)
        # Libraries also print a secret alone, as it is or escaped.
        for name, value in self._values.items():
            forms = {value, quote(value), quote(value, safe=""), unquote(value)}
            # The longest form first: a shorter one may be a part of it.
            for form in sorted(forms, key=len, reverse=True):
                if len(form) >= _SHORT:
                    text = text.replace(form, f"${name}")
        line = " ".join(text.split())
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def join(folder: str, name: str) -> str:
    """Returns the path of a file of a folder, as a file system of fsspec wants it.

    Example:
        >>> join("https://host/a?key=1", "b c.tar"), join("bucket/a", "b c.tar")
        ('https://host/a/b%20c.tar?key=1', 'bucket/a/b c.tar')
    """
    if not is_remote(folder):
        return f"{folder.rstrip('/')}/{name}"
    parts = urlsplit(folder)
    path = f"{parts.path.rstrip('/')}/{quote(name)}"
    return urlunsplit(parts._replace(path=path))


def without_credentials(text: str) -> str:
    """Returns a text whose URLs hold no password, query string or parameters.

    Names of environment variables stay.

    Example:
        >>> without_credentials("see https://user:1234@host/a?key=1 and https://$TOKEN@host/b")
        'see https://host/a and https://$TOKEN@host/b'
    """
    if whole := _SCHEME.match(text):  # all of it: a password may have spaces and quotes
        start = whole.start(1)
        chain = text[:start]
        return chain + _unless_public(text[start:])
    return _URL.sub(lambda url: _unless_public(url[0]), text)


def _unless_public(url: str) -> str:
    try:
        secret = _has_secret(url)
    except ValueError:  # any part of it may be a secret
        return f"{url.partition('://')[0]}://"
    return _public(url) if secret else url


def _has_secret(url: str) -> bool:
    """Whether a URL itself holds a secret; raises a `ValueError` if it cannot be parsed."""
    # The port is a number: the secret of "https://user:a/b@host" would look like one.
    _ = urlsplit(_VARIABLE.sub("0", url)).port
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    password = user.rpartition(":")[2] if at else ""
    parameters = "".join(_PARAMETERS.findall(parts.path)).replace(";", "")
    # The name of an environment variable is not a secret; any letter beside it may be.
    parts_without_names = [
        _VARIABLE.sub("", password),
        _VARIABLE.sub("", parts.query),
        _VARIABLE.sub("", parameters),
    ]
    return any(parts_without_names)


def _public(url: str) -> str:
    """A URL without user, password, query string, fragment and parameters."""
    # By hand: `urlsplit` refuses some of the URLs that have to be shown.
    scheme, _, rest = url.partition("://")
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    user_and_host, slash, path = rest.partition("/")
    _, _, host = user_and_host.rpartition("@")
    path = _PARAMETERS.sub("", path)
    return f"{scheme}://{host}{slash}{path}".rstrip("/")
