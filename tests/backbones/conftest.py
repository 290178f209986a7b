import pytest
from transformers.utils import logging

from tests.tiny import write_model


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a random open_clip model folder and gives its path."""

    def write(name="tiny", **options):
        return write_model(tmp_path / name, **options)

    return write


@pytest.fixture(autouse=True)
def no_bars():
    """Keeps the library from drawing a bar for each tiny model that is saved."""
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()
