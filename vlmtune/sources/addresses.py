"""From the address in a YAML to what is asked of a server.

In: `https://...`, `hub:...`, `hub-model:...` or `drive:ID`. Out: a URL and its headers.
Never: a token for another host than the hub's, or a token in a message.
"""

import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

MIRROR = "VLMTUNE_MIRROR"
"""Environment variable: a server that has every file at /HOST/PATH, and is asked alone.

A file of Google Drive is at /drive.usercontent.google.com/ID, as a mirror may ignore queries.
"""
HAND = "hand:"
"""Start of the address of a file that a person has to get: `hand:FILE NAME`."""
_HUB = re.compile(r"hub(?P<model>-model)?:(?P<repository>[^@]+)@(?P<revision>[^/]+)/(?P<path>.+)")
_DRIVE = "https://drive.usercontent.google.com/download?id={}&export=download&confirm=t"


@dataclass(frozen=True)
class ServerRequest:
    """What is asked of a server.

    Attributes:
        url: The URL.
        shown: The address as the YAML has it, for messages.
        headers: Headers; they may hold a token.
    """

    url: str
    shown: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


def request_of(address: str) -> ServerRequest:
    """Turns an address of a YAML into a request.

    Example:
        >>> request_of("hub:array/cola@2650831/data/multiobjects.parquet").url
        'https://huggingface.co/datasets/array/cola/resolve/2650831/data/multiobjects.parquet'
        >>> request_of("drive:1kX2iCHE").url
        'https://drive.usercontent.google.com/download?id=1kX2iCHE&export=download&confirm=t'
    """
    headers = {}
    url = address
    if on_hub := _HUB.fullmatch(address):
        from huggingface_hub import get_token, hf_hub_url  # takes a third of a second

        kind = "model" if on_hub["model"] else "dataset"
        of_repository = {"repo_type": kind, "revision": on_hub["revision"]}
        url = hf_hub_url(on_hub["repository"], on_hub["path"], **of_repository)
        if token := get_token():  # of `hf auth login` or the environment
            headers = {"Authorization": f"Bearer {token}"}
    elif address.startswith("drive:"):
        url = _DRIVE.format(address.removeprefix("drive:"))
    if mirror := os.environ.get(MIRROR):
        path = url.partition("://")[2]
        if address.startswith("drive:"):
            path = address.replace("drive:", f"{urlsplit(_DRIVE).netloc}/")
        # A token of the hub is not for whoever runs a mirror.
        return ServerRequest(f"{mirror.rstrip('/')}/{path}", address)
    return ServerRequest(url, address, headers)


def hub_page(address: str) -> str | None:
    """The page where a person accepts the terms of a repository of the hub; None elsewhere.

    Example:
        >>> hub_page("hub:facebook/winoground@b400e17/data/test.parquet")
        'https://huggingface.co/datasets/facebook/winoground'
    """
    match = _HUB.fullmatch(address)
    if match is None:
        return None
    kind = "" if match["model"] else "datasets/"
    return f"https://huggingface.co/{kind}{match['repository']}"


def file_name(address: str) -> str:
    """The name under which a browser would save the file.

    Example:
        >>> file_name("https://host/a/b%20c.zip?dl=1"), file_name("hand:ILSVRC2012_img_val.tar")
        ('b c.zip', 'ILSVRC2012_img_val.tar')
    """
    if address.startswith(HAND):
        return address.removeprefix(HAND)
    return unquote(urlsplit(address).path).rpartition("/")[2]
