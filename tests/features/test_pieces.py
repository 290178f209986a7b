"""A store built by several processes: each piece once, and again none after a kill."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.features.test_store import FILES
from tests.ranks import run_ranks
from tests.refusals import refused
from vlmtune.features import pieces
from vlmtune.features.pieces import open_or_build_together
from vlmtune.features.store import FeatureStore
from vlmtune.features.store_key import StoreKey, source_digest
from vlmtune.types import FeatureSpec, Pooled, Tokens

IDS = [f"id {n}" for n in range(23)]
KINDS = ("pooled", "tokens")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_ROWS", 4)  # six pieces, the last of three rows


def features(ids, kind):
    """Rows that follow from their ids alone: i + 0.5 for each of 3 numbers, i % 3 + 1 tokens."""
    numbers = [int(name.removeprefix("id ")) for name in ids]
    if kind == "pooled":
        return Pooled(torch.tensor([[n + 0.5] * 3 for n in numbers]))
    mask = torch.arange(3) < torch.tensor([n % 3 + 1 for n in numbers])[:, None]
    values = torch.tensor(numbers)[:, None, None] + torch.arange(3)[:, None] / 8
    return Tokens((values * mask[:, :, None]).expand(-1, -1, 5).contiguous(), mask)


def key(kind):
    spec = FeatureSpec(kind) if kind == "pooled" else FeatureSpec(kind, -1)
    return StoreKey("f00d", "image", spec, source_digest(IDS))


def build(root, kind, encoded, wait=0.0, die_after=None):
    def encode(ids):
        if die_after is not None and len(encoded) >= die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(wait)
        encoded.extend(ids)
        yield ids, features(ids, kind)

    return open_or_build_together(root, key(kind), IDS, encode)


def files(store: FeatureStore) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in store.folder.iterdir()
        if path.suffix == ".bin" or path.name == "ids.json"
    }


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_pieces_come_back_in_the_order_asked_for(kind, tmp_path):
    encoded: list[str] = []
    store = build(tmp_path, kind, encoded)
    assert encoded == IDS
    wanted = ["id 22", "id 0", "id 7", "id 8", "id 0"]
    got, expected = store.features(wanted), features(wanted, kind)
    assert got.values.equal(expected.values)
    if isinstance(got, Tokens):
        assert isinstance(expected, Tokens)
        assert got.mask.equal(expected.mask)
    assert store.features(["id 5"]).values.equal(features(["id 5"], kind).values[:, :3])
    assert len(FeatureStore(store.folder)) == 23
    assert build(tmp_path, kind, encoded).ids == tuple(IDS)
    assert len(encoded) == 23  # nothing was computed again
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [store.folder.name]


def _rank(rank, root, kind):
    pieces.PIECE_ROWS = 4
    encoded: list[str] = []
    store = build(Path(root), kind, encoded, wait=0.1)
    return encoded, store.features(IDS[::-1]).values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_compute_each_row_once_and_write_what_one_process_writes(kind, tmp_path):
    (one, first), (two, second) = run_ranks(2, tmp_path / "ranks", _rank, str(tmp_path / "a"), kind)
    assert sorted(one + two) == sorted(IDS)
    assert one
    assert two
    assert first.equal(second)
    together, alone = build(tmp_path / "a", kind, []), build(tmp_path / "b", kind, [])
    assert files(together) == files(alone)
    assert first.equal(alone.features(IDS[::-1]).values)


def test_without_a_row_no_piece_stays(tmp_path):
    with refused("expected rows to store"):
        open_or_build_together(tmp_path, key("pooled"), IDS, lambda ids: iter(()))
    assert build(tmp_path, "pooled", encoded := []).ids == tuple(IDS)
    assert encoded == IDS


def test_a_damaged_store_of_pieces_is_built_again(tmp_path):
    store = build(tmp_path, "pooled", [])
    (store.folder / "values-0002.bin").write_bytes(b"x")
    encoded: list[str] = []
    assert build(tmp_path, "pooled", encoded).features(["id 9"]).values.tolist() == [[9.5] * 3]
    assert encoded == IDS


@pytest.mark.parametrize("damage", [None, FILES["flipped"], FILES["broken meta"]])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_kill_only_missing_and_damaged_pieces_are_computed(tmp_path, damage):
    child = os.fork()
    if child == 0:
        build(tmp_path, "pooled", [], die_after=9)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    missing = IDS[12:]  # three pieces were complete
    if damage:
        (pieces_,) = tmp_path.glob(".*.pieces")
        damage(pieces_ / "0001")
        missing = [*missing, *IDS[4:8]]
    encoded: list[str] = []
    store = build(tmp_path, "pooled", encoded)
    assert encoded == missing
    assert store.features(IDS).values.equal(features(IDS, "pooled").values)
