import pytest
import torch
from safetensors.torch import save_file
from transformers.utils import logging

from tests.tiny import write_model


@pytest.fixture
def folder(tmp_path):
    def write(name="tiny", **options):
        return write_model(tmp_path / name, **options)

    return write


@pytest.fixture
def file(tmp_path, tiny_vl):
    """Returns a function that writes weights, by default those of Tiny-VL."""

    def write(name="epoch_5.pt", drop=(), **others):
        state = {k: v for k, v in tiny_vl.items() if k not in drop} | others
        if name.endswith(".safetensors"):
            save_file(state, tmp_path / name)
        else:
            torch.save({"epoch": 5, "state_dict": state}, tmp_path / name)
        return str(tmp_path / name)

    return write


@pytest.fixture(autouse=True)
def no_bars():
    """Keeps the library from drawing a bar for each tiny model that is saved."""
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()
