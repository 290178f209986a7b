"""A full disk: one line that names it, and the old file stays as it was."""

import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.refusals import refused
from vlmtune.cli.run_folder import AtomicCheckpoints
from vlmtune.features.store import FeatureStore, open_or_build_store
from vlmtune.features.store_key import StoreKey
from vlmtune.storage.files import write_atomically, write_text
from vlmtune.types import FeatureSpec, Pooled

BYTES = 50_000


@pytest.fixture
def full_disk():
    """No file may grow beyond `BYTES`: `write` then fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def line(path: Path) -> str:
    return f"^expected to write {path}, got .*File too large.* with [0-9.,]+ MB free on its disk"


def test_a_checkpoint(tmp_path, full_disk):
    path, large = tmp_path / "last.ckpt", {"weights": torch.zeros(BYTES)}
    AtomicCheckpoints().save_checkpoint({"step": 1}, path)
    with refused(line(path)):
        AtomicCheckpoints().save_checkpoint(large, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_feature_store(tmp_path, full_disk):
    spec = FeatureSpec("pooled", -1)
    key, ids = StoreKey("f00d", "text", spec, "cafe"), [str(row) for row in range(100)]
    chunk = (ids, Pooled(torch.ones(100, 500)))
    with refused(line(tmp_path / key.folder)):
        open_or_build_store(tmp_path, key, lambda: [chunk], 100)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    small = (ids, Pooled(torch.ones(100, 5)))
    assert isinstance(open_or_build_store(tmp_path, key, lambda: [small], 100), FeatureStore)


def test_text_such_as_a_report_or_the_list_of_an_index(tmp_path, full_disk):
    path = tmp_path / "report.json"
    write_text(path, "old")
    with refused(line(path)):
        write_text(path, "x" * (BYTES + 1))
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["report.json"])


def test_safetensors_and_folders_such_as_exports_and_shards(tmp_path, full_disk):
    path = tmp_path / "export"

    def export(rows):
        with write_atomically(path) as temporary:
            temporary.mkdir()
            save_file({"a": torch.ones(rows)}, temporary / "adapter.safetensors")

    export(10)
    with refused(f"^expected to write {path}, got .*File too large"):
        export(BYTES)
    assert len(load_file(path / "adapter.safetensors")["a"]) == 10
    assert os.listdir(tmp_path) == ["export"]


def test_an_error_that_is_not_of_the_disk_stays_as_it_is(tmp_path):
    def write():
        with write_atomically(tmp_path / "a"):
            try:
                raise FileNotFoundError(2, "No such file or directory", "b")
            except FileNotFoundError:
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        write()
