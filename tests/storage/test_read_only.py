"""A folder that cannot be written: what is complete there is used, the rest is one line."""

import errno
import os

import pytest

from tests.refusals import refused
from tests.runs import QUIET, fit, module, same_weights, weights
from vlmtune.storage import folder

pytestmark = QUIET


@pytest.fixture
def read_only(monkeypatch):
    """Returns a function after which no lock can be taken, as on a disk mounted read-only."""

    def fail(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    return lambda: monkeypatch.setattr(folder.FileLock, "acquire", fail)


def test_a_complete_store_is_trained_from(model_folder, shards, tmp_path, read_only):
    whole, again = (module(model_folder, store=str(tmp_path / "store")) for _ in range(2))
    fit(whole, shards, tmp_path / "run", steps=2)
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "store").rglob("*"))
    assert before
    read_only()
    fit(again, shards, tmp_path / "again", steps=2)
    assert same_weights(weights(again), weights(whole))
    after = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "store").rglob("*"))
    assert after == before


def test_a_store_that_is_not_there_is_one_line(model_folder, shards, tmp_path, read_only):
    read_only()
    with refused(f"expected a folder that can be written, got {tmp_path} .Read-only file system"):
        fit(module(model_folder, store=str(tmp_path)), shards, tmp_path / "run", steps=2)
