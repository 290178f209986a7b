"""A full disk: one line that names it, and the old files stay as they were."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.refusals import refused
from tests.tiny import cola_plugin, write_cola
from vlmtune.cli.main import main
from vlmtune.cli.run_folder import AtomicCheckpoints
from vlmtune.features.store import FeatureStore, open_or_build_store
from vlmtune.features.store_key import StoreKey
from vlmtune.storage.files import all_or_none, write_atomically, write_text
from vlmtune.types import FeatureSpec, Pooled

BYTES = 50_000


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: `write` then fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def full_disk():
    with room(BYTES):
        yield


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


@pytest.mark.parametrize("full_at", range(3))
def test_files_that_belong_together_stay_together(tmp_path, full_disk, full_at):
    texts = ["new"] * 3
    texts[full_at] = "x" * (BYTES + 1)

    def write(texts):
        with all_or_none():
            write_text(tmp_path / "0", texts[0])
            with all_or_none():  # the outer one renames
                write_text(tmp_path / "1", texts[1])
            write_text(tmp_path / "2", texts[2])

    write(["old"] * 3)
    with refused(line(tmp_path / str(full_at))):
        write(texts)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: "old" for name in "012"
    }
    write(["new"] * 3)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"] * 3


def test_a_name_that_cannot_be_replaced_leaves_no_leftovers(tmp_path):
    (tmp_path / "taken/file").mkdir(parents=True)

    def write():
        with all_or_none():
            write_text(tmp_path / "taken", "text")

    with refused(f"^expected to write {tmp_path}/taken, got "):
        write()
    assert os.listdir(tmp_path) == ["taken"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_report_is_replaced_with_all_its_files_or_not_at_all(
    tmp_path, model_folder, monkeypatch, capsys
):
    spec = cola_plugin(write_cola(tmp_path / "cola"), name="tiny")
    (tmp_path / "tiny.yaml").write_text(json.dumps(spec))
    (tmp_path / "words.txt").write_text("a red cube\n")
    out, both = tmp_path / "out", tmp_path / "both"
    evaluate = ["evaluate", "--model", model_folder, "--benchmarks", tmp_path / "tiny.yaml"]
    evaluate += ["--out", out, "--items", out / "items.jsonl", "--device", "cpu"]
    evaluate += ["--text-only", tmp_path / "words.txt"]
    report = ["report", out, "--out", both, "--csv", both / "a.csv", "--latex", both / "a.tex"]

    def run(words, *more):
        return main([str(word) for word in (*words, *more)])

    def check(folder, words, *more):
        before = files(folder)
        sizes = sorted(len(content) for content in before.values())
        # Where only the largest does not fit, the most has been written before.
        for size in (sizes[0], sizes[-1]):
            with room(size - 1):
                assert run(words, *more) == 2
            assert "error: expected to write " in capsys.readouterr().err
            assert files(folder) == before
        assert run(words, *more) == 0
        assert files(folder) != before

    assert run(evaluate, "--name", "old") == 0
    assert run(report) == 0
    check(out, evaluate, "--name", "newer")
    check(both, report)


def test_an_error_that_is_not_of_the_disk_stays_as_it_is(tmp_path):
    def write():
        with write_atomically(tmp_path / "a"):
            try:
                raise FileNotFoundError(2, "No such file or directory", "b")
            except FileNotFoundError:
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        write()
