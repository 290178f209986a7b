"""A server on loopback for the tests of remote storage."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """A running server of the folder `tmp_path / "remote"`."""
    with serving(tmp_path / "remote") as made:
        yield made


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of this machine must not stand between a test and loopback."""
    for name in os.environ:
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name)
