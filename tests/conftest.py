"""What every test may use: a tiny model and a tiny corpus, written once."""

import gc
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from open_clip import factory
from safetensors.torch import load_file
from torch import Tensor

from tests.tiny import halves, write_cola, write_model, write_shards
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.benchmarks.cola_multi import ColaMulti

# PyTorch gives some warnings once a process: which test gets one would depend on their order.
torch.set_warn_always(True)
# Modules hold millions of objects, none of them garbage: they are never searched for any.
gc.disable()

REVISION = "0123456789abcdef0123456789abcdef01234567"


def pytest_collection_finish() -> None:
    """All modules of the tests are imported: from here on, only what tests make is searched."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries list whatever the collector does not see at the end of a process."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors are slower on many threads, and pinned numbers depend on how many there are.

    Set before each test: a test that trains with DDP sets another number, and a process that is
    forked from one with several threads waits for them without end.
    """
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_rank():
    """Lightning leaves its rank in the environment, and a command would wait for other ranks."""
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


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


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three image files."""
    folder = tmp_path_factory.mktemp("pictures")
    files = [folder / f"{name}.png" for name in ("red", "blue", "green")]
    for file in files:
        halves(file.stem, "red").save(file)
    return files


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random open_clip model with CLIP's own words."""
    folder = tmp_path_factory.mktemp("model") / "clip"
    return write_model(folder, vocabulary=False, text={"context_length": 77})


@pytest.fixture
def cola(tmp_path: Path) -> Callable[..., ColaMulti]:
    """Returns a function that makes a benchmark of nine items, 18 images and 18 captions."""
    path = write_cola(tmp_path / "cola")

    def make(name: str = "cola", kind: type[ColaMulti] = ColaMulti, **options: Any) -> ColaMulti:
        return kind(str(path), str(path.parent), name=name, **options)

    return make


@pytest.fixture
def tiny_vl(clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Weights of Tiny-VL; open_clip knows this name, and Tiny-VL-quickgelu, as built in."""
    config = json.loads((clip_folder / "open_clip_config.json").read_text())["model_cfg"]
    monkeypatch.setitem(factory._MODEL_CONFIGS, "Tiny-VL", config)
    quick = config | {"quick_gelu": True}
    monkeypatch.setitem(factory._MODEL_CONFIGS, "Tiny-VL-quickgelu", quick)
    return load_file(clip_folder / "open_clip_model.safetensors")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that puts a folder into a cache laid out as the hub's; no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(name: str, folder: Path, kind: str = "models") -> None:
        repository = tmp_path / "hub" / f"{kind}--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / REVISION
        for place in (repository / "blobs", repository / "refs", snapshot):
            place.mkdir(parents=True)
        (repository / "refs/main").write_text(REVISION)
        # A snapshot is links to blobs named by their content; it has no empty folder.
        for file in filter(Path.is_file, folder.iterdir()):
            blob = hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.copy(file, repository / "blobs" / blob)
            (snapshot / file.name).symlink_to(f"../../blobs/{blob}")

    return put
