import pytest

from tests.tiny import write_model


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a random open_clip model folder and gives its path."""

    def write(name="tiny", **options):
        return write_model(tmp_path / name, **options)

    return write
