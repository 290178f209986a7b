"""Any record of a tar at once, from an index that is made once and checked."""

import os
import tarfile
from pathlib import Path

import pytest

from tests.data.test_shards import keys, record_json, write_tar
from vlmtune.data import tar_index
from vlmtune.data.schema import ShardInfo
from vlmtune.data.stream import GroupStream
from vlmtune.data.tar_index import SUFFIX, OpenTars, make_index, open_index
from vlmtune.data.tar_records import Damage, RawRecord, read_records


def info_of(path: Path, records: int, sha256: str = "f00d") -> ShardInfo:
    return ShardInfo(path.name, records, records, path.stat().st_size, sha256)


def read_all(path: Path, info: ShardInfo, images: bool = True) -> list[RawRecord | Damage]:
    """Last record first."""
    with OpenTars() as tars:
        items = [tars.read(path, info, i, images) for i in reversed(range(info.records))]
    return items[::-1]


@pytest.fixture
def tar(make_set) -> tuple[Path, ShardInfo]:
    """A tar of five records, and what its manifest says of it."""
    data = make_set(5)
    return data.files[0], data.manifest.shards[0]


@pytest.mark.parametrize("images", [True, False])
def test_records_are_those_of_the_tar_in_any_order(make_set, images):
    data = make_set(7)
    want = list(read_records(data.files[0], 7, images))
    for _ in range(2):  # made, and read from its file
        assert read_all(data.files[0], data.manifest.shards[0], images) == want
    assert want[0].members.keys() == ({"0.png", "1.png", "json"} if images else {"json"})


def test_refused_members_and_odd_names_are_indexed_too(tmp_path, encoded_png):
    members: list[tuple[str, bytes | str]] = []
    for key in ("a", "b", "c", "ü\udcff"):
        name = "../b.0.png" if key == "b" else f"{key}.0.png"
        members += [(name, encoded_png(1)), (f"{key}.json", record_json("k"))]
    path = write_tar(tmp_path / "s.tar", members)
    want = list(read_records(path, 4))
    assert keys(want) == ["a", "!", "c", "ü\udcff"]
    assert "a path that leaves the tar" in str(want[1])
    assert read_all(path, info_of(path, 4)) == want
    assert not path.with_suffix(SUFFIX).exists()  # the tar may be mended


def test_long_names_and_pax_headers_are_read(tmp_path, encoded_png):
    path = tmp_path / "s.tar"
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(path, "w", format=kind) as tar:
            for key in ("a" * 150, "b"):
                for name, content in ((f"{key}.0.png", encoded_png(1)), (f"{key}.json", b"{}")):
                    (tmp_path / "member").write_bytes(content)
                    tar.add(tmp_path / "member", name)
        items = read_all(path, info_of(path, 2, str(kind)))
        assert keys(items) == ["a" * 150, "b"]
        assert items[0].members["0.png"] == encoded_png(1)


def test_an_index_is_written_once_and_again_for_other_records(tar):
    path, info = tar
    open_index(path, info)
    file = path.with_suffix(SUFFIX)
    written = file.stat().st_mtime_ns
    assert len(open_index(path, info)) == 5
    assert file.stat().st_mtime_ns == written
    other = ShardInfo(info.file, info.records, info.images, info.bytes, "beef")
    assert open_index(path, other).record(path, 4) == open_index(path, info).record(path, 4)
    assert file.stat().st_mtime_ns != written


def flipped(whole: bytes) -> bytes:
    """Another character in a caption's name."""
    at = whole.index(b"r3")
    return whole[:at] + b"s" + whole[at + 1 :]


DAMAGE = {
    "flipped": flipped,
    "short": lambda whole: whole[:-8],
    "fewer rows": lambda whole: whole.replace(b"(6,)", b"(4,)"),
    "empty": lambda whole: b"",
    "no archive": lambda whole: b"x" + whole[1:],
    "without an array": lambda whole: whole.replace(b"spans.npy", b"spams.npy"),
    "another sha256": lambda whole: whole.replace(b"sha256.npy", b"sha257.npy"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_index_is_made_again(tar, kind):
    path, info = tar
    open_index(path, info)
    file = path.with_suffix(SUFFIX)
    whole = file.read_bytes()
    changed = DAMAGE[kind](whole)
    assert changed != whole
    file.write_bytes(changed)
    assert open_index(path, info).record(path, 0) == make_index(path, 5).record(path, 0)
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_indexed_elsewhere(tar, tmp_path, monkeypatch):
    path, info = tar
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != path.parent)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    want = open_index(path, info).record(path, 3)
    assert not path.with_suffix(SUFFIX).exists()
    (file,) = (tmp_path / "home/.cache/vlmtune/offsets").rglob(f"*{SUFFIX}")
    written = file.stat().st_mtime_ns
    assert open_index(path, info).record(path, 3) == want
    assert file.stat().st_mtime_ns == written


def test_where_nothing_can_be_written_each_reader_makes_its_index(tar, tmp_path, monkeypatch):
    path, info = tar
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "home").write_text("a file where a folder belongs")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        tar_index, "sha256_of", lambda path: pytest.fail("it would be read each time")
    )
    assert len(open_index(path, info, verify=True)) == 5


def test_a_tar_that_is_gone_or_cut_off_is_damage(tar):
    path, info = tar
    open_index(path, info)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    items = read_all(path, info)
    assert isinstance(items[0], RawRecord)
    assert "the tar ends early" in str(items[-1])
    path.unlink()
    assert {type(item) for item in read_all(path, info)} == {Damage}


def test_few_tars_are_kept_open(make_set, monkeypatch):
    monkeypatch.setattr("vlmtune.data.tar_index.OPEN_TARS", 2)
    data = make_set(9, 2)
    with OpenTars() as tars:
        for _ in range(2):
            for shard, (file, info) in enumerate(
                zip(data.files, data.manifest.shards, strict=True)
            ):
                assert keys([tars.read(file, info, 0)]) == [f"r{2 * shard}"]
                assert len(os.listdir("/proc/self/fd")) < 60
                assert len(tars._open) <= 2
    assert not tars._open


@pytest.fixture
def hashed(monkeypatch):
    """The tars whose sha256 was computed; this process has warned of none."""
    compute, listed = tar_index.sha256_of, []
    monkeypatch.setattr(tar_index, "sha256_of", lambda path: listed.append(path) or compute(path))
    monkeypatch.setattr(tar_index, "_warned", set())
    return listed


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_the_sha256_is_computed_once_for_each_change_of_a_tar(tar, hashed, caplog):
    path, info = tar
    open_index(path, info)  # such as for a tar of a cache, which was verified before
    assert hashed == []
    for _ in range(3):
        open_index(path, info, verify=True)
    assert hashed == [path]
    os.utime(path, ns=(1, 1))
    for _ in range(3):
        open_index(path, info, verify=True)
    assert hashed == [path, path]
    assert caplog.messages == []


def test_a_flipped_bit_in_a_tar_is_found(make_set, hashed, caplog, monkeypatch):
    data = make_set(5)
    path = data.files[0]
    text = path.read_bytes().index(b"caption r3-0")
    flip(path, text)  # "b" in place of "c": nothing else can notice it
    batches = list(GroupStream((data,), 1).batches())
    assert [lines for _, lines in batches] == [()] * 5
    line = f"expected {path} as its manifest describes it, got another sha256: records that can be "
    assert caplog.messages == [f"{line}decoded are used; copy the tar or build the shards again"]
    list(GroupStream((data,), 1).batches(1))
    assert len(caplog.messages) == 1  # once in a process
    monkeypatch.setattr(tar_index, "_warned", set())
    list(GroupStream((data,), 1).batches())
    assert len(caplog.messages) == 2  # the next run warns, too, and computes nothing
    assert hashed == [path]
    flip(path, text)
    list(GroupStream((data,), 1).batches())
    assert (len(caplog.messages), hashed) == (2, [path, path])
