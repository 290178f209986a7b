"""What every test may use: a tiny model and a tiny corpus, written once."""

from pathlib import Path

import pytest
import torch

from tests.tiny import write_model, write_shards
from vlmtune.backbones.open_clip import OpenClip


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors are slower on many threads, and pinned numbers depend on how many there are."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random open_clip model with room for long prompts."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny", text={"context_length": 77})


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    folder = tmp_path_factory.mktemp("model") / "other"
    return write_model(folder, seed=1, text={"context_length": 77})


@pytest.fixture
def backbone(model_folder: Path) -> OpenClip:
    return OpenClip(str(model_folder))


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve records in three shards."""
    return write_shards(tmp_path_factory.mktemp("shards") / "halves")
