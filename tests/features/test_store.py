import logging
import multiprocessing
import os
import pickle
import shutil
import time

import pytest
import torch

from tests.refusals import refused
from vlmtune.features.store import FeatureStore, copy_from, open_or_build_store, similar_stores
from vlmtune.features.store_key import StoreKey
from vlmtune.storage import folder as folders
from vlmtune.storage.folder import DamagedError
from vlmtune.types import FeatureSpec, Pooled, Tokens

TOKENS, POOLED = FeatureSpec("tokens", -2), FeatureSpec("pooled")


def key(spec=TOKENS, source="s", dtype="float32", **more):
    return StoreKey(more.get("backbone", "b"), more.get("modality", "text"), spec, source, dtype)


def ragged(lengths, width=4, seed=0):
    torch.manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randn(len(lengths), max(lengths), width) * mask[:, :, None]
    return Tokens(tokens, mask=mask)


BLOCKS = [(["a", "b", "c"], ragged([2, 5, 1])), (["d", "e"], ragged([3, 3], seed=1))]


def produce():
    return iter(BLOCKS)


def forbidden():
    raise AssertionError("the store is there; nothing is to be produced")


def contents(root):
    return sorted(p.name for p in root.iterdir() if not p.name.endswith(".lock"))


def test_rows_come_back_in_the_order_asked_for(tmp_path):
    store = open_or_build_store(tmp_path, key(), produce, 5)
    assert store.ids == ("a", "b", "c", "d", "e")
    assert len(store) == 5
    assert "c" in store
    assert "x" not in store
    got = store.features(["d", "a", "d"])
    assert got.mask.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert got.values[0].equal(BLOCKS[1][1].values[0])
    assert got.values[1, :2].equal(BLOCKS[0][1].values[0, :2])
    assert not got.values[1, 2].any()
    assert store.features(["b"]).values.equal(BLOCKS[0][1].values[1:2])
    assert len(store.features([])) == 0
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert pickle.loads(data).features(["b"]).values.equal(store.features(["b"]).values)
    store.features(["a"]).values.fill_(9)
    store._pieces[0][0].fill_(9)
    assert FeatureStore(store.folder).features(["b"]).values.equal(BLOCKS[0][1].values[1:2])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pooled_in_each_type(tmp_path, dtype):
    values, names = torch.randn(6, 8), list("uvwxyz")
    made = key(POOLED, dtype=dtype)
    store = open_or_build_store(tmp_path, made, lambda: [(names, Pooled(values))], 6)
    got = store.features(names[::-1])
    assert isinstance(got, Pooled)
    assert got.values.dtype == torch.float32
    assert got.values.equal(values.to(getattr(torch, dtype)).float().flip(0))
    size = (store.folder / "values.bin").stat().st_size
    assert size == 6 * 8 * getattr(torch, dtype).itemsize


def test_only_real_tokens_are_stored_and_a_second_opening_produces_nothing(tmp_path):
    first = open_or_build_store(tmp_path, key(), produce, 5)
    assert (first.folder / "values.bin").stat().st_size == (2 + 5 + 1 + 3 + 3) * 4 * 4
    again = open_or_build_store(tmp_path, key(), forbidden, 5)
    assert again.features(["e", "b"]).values.equal(first.features(["e", "b"]).values)


def test_duplicates_are_kept_once_and_first(tmp_path):
    blocks = [(["a", "a", "b"], ragged([2, 3, 1])), (["b", "c"], ragged([4, 4], seed=1))]
    store = open_or_build_store(tmp_path, key(), lambda: blocks, 5)
    assert store.ids == ("a", "b", "c")
    assert store.features(["a"]).values.equal(blocks[0][1].values[:1, :2])
    assert store.features(["b"]).values.equal(blocks[0][1].values[2:, :1])
    assert store.features(["c"]).values.equal(blocks[1][1].values[1:])


@pytest.mark.parametrize(
    "other",
    [
        key(source="t"),
        key(FeatureSpec("tokens", -1)),
        key(POOLED),
        key(dtype="float16"),
        key(backbone="c"),
        key(modality="image"),
    ],
)
def test_another_key_is_another_folder(other):
    assert other.folder != key().folder
    assert key(FeatureSpec("pooled", -1)).folder == key(FeatureSpec("pooled", -2)).folder


@pytest.mark.parametrize("spec", [FeatureSpec("pooled", frozen=False), FeatureSpec("words")])
def test_live_representations_are_not_stored(spec):
    with pytest.raises(AssertionError, match="encoded in each step"):
        key(spec)


def flip(folder):
    data = bytearray((folder / "values.bin").read_bytes())
    data[5] ^= 1
    (folder / "values.bin").write_bytes(data)


def foreign_folder(folder):
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")


def swap_ids(folder):
    text = (folder / "ids.json").read_text()
    (folder / "ids.json").write_text(text.replace('"a"', '"z"'))


def halve_width(folder):  # halves that are whole tokens, too
    text = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(text.replace('"width": 4', '"width": 2'))


FILES = {
    "truncated": lambda folder: os.truncate(folder / "values.bin", 7),
    "flipped": flip,
    "broken meta": lambda folder: (folder / "meta.json").write_text("{"),
    "changed meta": halve_width,
    "swapped ids": swap_ids,
    "foreign folder": foreign_folder,
}
GONE = [
    lambda folder: (folder / "offsets.bin").unlink(),
    lambda folder: (shutil.rmtree(folder), folder.write_text("mine")),
]


@pytest.mark.parametrize("damage", [*FILES.values(), *GONE])
def test_a_damaged_store_is_rebuilt_and_said_so(tmp_path, caplog, damage):
    whole = open_or_build_store(tmp_path, key(), produce, 5)
    damage(whole.folder)
    with pytest.raises(DamagedError):
        FeatureStore(whole.folder, key())
    calls = []
    with caplog.at_level(logging.INFO, "vlmtune"):
        again = open_or_build_store(tmp_path, key(), lambda: calls.append(1) or produce(), 5)
    assert calls == [1]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"Rebuilding the feature store {whole.folder}")
    assert again.features(["b"]).values.equal(BLOCKS[0][1].values[1:2])
    assert contents(tmp_path) == [key().folder]


def test_large_files_are_checked_when_touched(tmp_path, monkeypatch):
    store = open_or_build_store(tmp_path, key(), produce, 5)
    # Small ones are checked although their time is the same.
    with monkeypatch.context() as patch:
        patch.setattr(folders, "sha256_of", lambda _: "another")
        with pytest.raises(DamagedError, match="changed after"):
            FeatureStore(store.folder, key())
    monkeypatch.setattr(folders, "ALWAYS_CHECKED", 0)
    FeatureStore(store.folder, key())
    os.utime(store.folder / "values.bin", ns=(1, 1))
    FeatureStore(store.folder, key())
    flip(store.folder)
    with pytest.raises(DamagedError, match="changed after"):
        FeatureStore(store.folder, key())


def test_a_failed_build_leaves_nothing(tmp_path):
    def fails():
        yield BLOCKS[0]
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        open_or_build_store(tmp_path, key(), fails, 5)
    assert contents(tmp_path) == []
    # Leftovers of a killed process are removed.
    leftover = tmp_path / f".{key().folder}.123.part"
    leftover.mkdir()
    (leftover / "values.bin").write_bytes(b"half")
    assert len(open_or_build_store(tmp_path, key(), produce, 5)) == 5
    assert contents(tmp_path) == [key().folder]


def test_a_disk_that_is_full_or_too_small_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with refused(r"expected 2\.\d+ kB of disk .* got 1 kB free"):
        open_or_build_store(tmp_path, key(), produce, 50)  # 8/3 tokens x 4 x 4 bytes x 50
    assert contents(tmp_path) == []
    monkeypatch.undo()

    def full(self, name, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.FolderWriter, "append", full)
    with refused("No space left"):
        open_or_build_store(tmp_path, key(), produce, 5)
    assert contents(tmp_path) == []


def test_the_size_is_announced(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "vlmtune"):
        open_or_build_store(tmp_path, key(), produce, 3)
    assert "about 128 B in" in caplog.text  # the first block is 8 tokens x 4 x 4 bytes


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_numbers_the_type_cannot_hold_are_refused(tmp_path, bad):
    values, half = torch.ones(2, 3), key(POOLED, dtype="float16")
    values[1, 1] = bad
    with refused("finite"):
        open_or_build_store(tmp_path, half, lambda: [(["a", "b"], Pooled(values))], 2)
    assert contents(tmp_path) == []


def test_no_rows_unknown_ids_and_a_root_that_is_a_file_are_errors(tmp_path):
    with refused("rows to store"):
        open_or_build_store(tmp_path, key(), lambda: iter(()), 0)
    assert contents(tmp_path) == []
    store = open_or_build_store(tmp_path, key(), produce, 5)
    with refused("2 of 3 are not among them, first 'x'"):
        store.features(["a", "x", "y"])
    (tmp_path / "file").write_text("")
    with refused("expected a folder that can be written"):
        open_or_build_store(tmp_path / "file", key(), produce, 5)


def built(root, made, ids):
    """Builds a store of `ids` from what others of `root` have; returns it and what was encoded."""
    encoded = []

    def encode(left):
        encoded.extend(left)
        for names, rows in BLOCKS:
            where = {name: slice(row, row + 1) for row, name in enumerate(names)}
            yield from (([name], rows[where[name]]) for name in left if name in where)

    def produced():
        return copy_from(similar_stores(root, made), ids, encode)

    return open_or_build_store(root, made, produced, len(ids)), encoded


def test_rows_of_other_sources_are_copied(tmp_path):
    assert built(tmp_path, key(source="one"), ["a", "b"])[1] == ["a", "b"]
    assert built(tmp_path, key(source="two"), ["c", "b"])[1] == ["c"]
    store, encoded = built(tmp_path, key(source="all"), ["e", "b", "a", "c", "d"])
    assert encoded == ["e", "d"]
    whole = open_or_build_store(tmp_path / "other", key(), produce, 5)
    got, want = store.features(list("abcde")), whole.features(list("abcde"))
    assert got.values.equal(want.values)
    assert got.mask.equal(want.mask)
    assert built(tmp_path, key(source="again"), ["d", "a"])[1] == []


@pytest.mark.parametrize(
    "other", [key(FeatureSpec("tokens", -1)), key(dtype="float16"), key(backbone="c")]
)
def test_rows_of_anything_else_are_not_copied(tmp_path, other):
    built(tmp_path, other, ["a", "b"])
    assert built(tmp_path, key(source="one"), ["a", "b"])[1] == ["a", "b"]


@pytest.mark.parametrize("damage", FILES.values(), ids=FILES)
def test_a_damaged_store_is_not_copied_from(tmp_path, damage):
    damage(built(tmp_path, key(source="one"), ["a", "b"])[0].folder)
    assert built(tmp_path, key(source="two"), ["a", "b"])[1] == ["a", "b"]


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"key": 3}', "{}"])
def test_a_foreign_folder_beside_stores_is_not_copied_from(tmp_path, text):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/meta.json").write_text(text)
    stores = similar_stores(tmp_path, key())
    encoded = list(copy_from(stores, ["a"], lambda ids: [(ids, BLOCKS[0][1])]))
    assert encoded == [(["a"], BLOCKS[0][1])]


def _slow_build(root, log):
    def slow():
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        yield from BLOCKS

    assert len(open_or_build_store(root, key(), slow, 5)) == 5
    with log.open("a") as file:
        file.write("opened\n")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_build_once(tmp_path):
    context = multiprocessing.get_context("fork")
    root, record = tmp_path / "root", tmp_path / "log"
    workers = [context.Process(target=_slow_build, args=(root, record)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert record.read_text().split() == ["built", "opened", "opened"]
    assert contents(root) == [key().folder]
