"""A server on loopback for the tests of remote storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """A running server of the folder `tmp_path / "remote"`."""
    with serving(tmp_path / "remote") as made:
        yield made
