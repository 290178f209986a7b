"""Tars that others wrote: indexed once, left alone, and read with the guarantees of our own."""

import json
import logging
import os
from pathlib import Path

import pytest

from tests.data.test_shards import write_tar
from tests.refusals import refused
from vlmtune.data.catalogue import catalogue
from vlmtune.data.record_index import read_group, record_index
from vlmtune.data.schema import MANIFEST, RecordError
from vlmtune.data.shards import ShardSet, decode_group
from vlmtune.data.stream import GroupStream
from vlmtune.data.tar_records import RawRecord
from vlmtune.data.webdataset import decode_sample
from vlmtune.mining.corpus import corpus


def members(number: int, image: bytes) -> list[tuple[str, bytes]]:
    """A record as img2dataset writes it."""
    key, caption = f"{number:09d}", f"caption {number}"
    facts = {"caption": caption, "url": f"x.org/{key}", "key": key, "status": "success"}
    facts |= {"error_message": None, "width": 8, "height": 8, "exif": "{}"}
    return [
        (f"{key}.jpg", image),
        (f"{key}.json", json.dumps(facts).encode()),
        (f"{key}.txt", caption.encode()),
    ]


@pytest.fixture
def folder(tmp_path, encoded_png) -> Path:
    """Two tars of four and three records, with the other files of img2dataset beside them."""
    out = tmp_path / "wds"
    out.mkdir()
    for shard, numbers in enumerate((range(4), range(4, 7))):
        content = [member for n in numbers for member in members(n, encoded_png(n))]
        write_tar(out / f"{shard:05d}.tar", content)
        (out / f"{shard:05d}_stats.json").write_text("{}")
    return out


def captions_of(batches) -> list[str]:
    return [text for groups, _ in batches for group in groups for text in group.texts]


def test_tars_are_indexed_once_and_left_alone(folder):
    before = {path: path.read_bytes() for path in folder.glob("*.tar")}
    data = ShardSet(str(folder))
    assert data.counts == [4, 3]
    assert data.manifest.counts == {"captions": 7}
    assert data.manifest.images == 7
    written = (folder / MANIFEST).stat().st_mtime_ns
    assert ShardSet(str(folder)).digest() == data.digest()
    assert (folder / MANIFEST).stat().st_mtime_ns == written
    assert {path: path.read_bytes() for path in folder.glob("*.tar")} == before
    names = {path.name for path in folder.iterdir()} - {path.name for path in before}
    assert names == {MANIFEST, "00000_stats.json", "00001_stats.json"}


def test_records_are_images_with_their_captions(folder, encoded_png):
    listed = catalogue([ShardSet(str(folder))])
    assert listed.texts == sorted(f"caption {n}" for n in range(7))
    assert [location.read() for location in listed.images.values()] == list(
        map(encoded_png, range(7))
    )
    known = corpus([ShardSet(str(folder))])
    assert list(known.captions.values()) == [(f"caption {n}",) for n in range(7)]
    index = record_index([ShardSet(str(folder))])
    group = read_group(index[5])
    assert group.texts == ("caption 5",)
    assert group.images[0].getpixel((0, 0)) == (5, 10, 20)
    assert read_group(index[5], images=False).image_ids == group.image_ids


def test_images_of_two_folders_with_equal_keys_have_two_ids(folder, tmp_path, encoded_png):
    other = tmp_path / "other"
    other.mkdir()
    write_tar(other / "00000.tar", [*members(0, encoded_png(9))[:1], ("000000000.txt", b"b")])
    one, two = (catalogue([ShardSet(str(path))]).images for path in (folder, other))
    assert not one.keys() & two.keys()
    (folder.parent / "moved").mkdir()
    for path in folder.glob("*.tar"):
        path.rename(folder.parent / "moved" / path.name)
    moved = ShardSet(str(folder.parent / "moved"))
    assert catalogue([moved]).images.keys() == one.keys()


def test_damage_is_counted_reported_and_not_fatal(folder, encoded_png, caplog):
    content = [
        *members(0, b"no image"),
        *members(1, encoded_png(1))[:1],  # no caption
        *members(2, b"")[1:],  # no image
        *members(3, encoded_png(3)),
        ("000000004.jpg", encoded_png(4)),
        ("000000004.json", b"{"),
        *(member for n in range(5, 20) for member in members(n, encoded_png(n))),
    ]
    write_tar(folder / "00000.tar", content)
    with caplog.at_level(logging.WARNING, "vlmtune"):
        data = ShardSet(str(folder))
        assert data.manifest.counts == {"captions": 20, "unusable": 3}
    assert "3 of 23 records" in caplog.text
    assert "00000.tar 000000001 has no caption" in caplog.text
    stream = GroupStream((data,), 1, train=False, max_damaged=0.5)
    batches = list(stream.batches())
    assert captions_of(batches) == [f"caption {n}" for n in (3, *range(5, 20), 4, 5, 6)]
    lines = [line.partition("tar ")[2] for _, damaged in batches for line in damaged]
    assert [line[:9] for line in lines] == [f"00000000{n}" for n in (0, 1, 2, 4)]
    assert "image refused" in lines[0]
    assert "no image" in lines[2]
    with refused("damaged of 23 records"):
        list(GroupStream((data,), 1, train=False).batches())


def test_a_tar_that_ends_early_keeps_what_is_before(folder):
    tar = folder / "00001.tar"
    content = tar.read_bytes()
    tar.write_bytes(content[: content.index(b"000000006.json") - 100])
    data = ShardSet(str(folder))
    assert data.counts == [4, 3]
    stream = GroupStream((data,), 1, train=False, max_damaged=0.5)
    assert captions_of(stream.batches()) == [f"caption {n}" for n in range(6)]


def test_new_and_changed_tars_are_indexed_again_whatever_their_size(folder, encoded_png):
    before = ShardSet(str(folder)).digest()
    write_tar(folder / "00002.tar", members(7, encoded_png(7)))
    data = ShardSet(str(folder))
    assert data.counts == [4, 3, 1]
    assert data.digest() != before
    (folder / "00002.tar").unlink()
    assert ShardSet(str(folder)).digest() == before
    first = folder / "00000.tar"
    assert len(record_index([ShardSet(str(folder))])) == 7
    size = first.stat().st_size
    content = [member for n in range(10, 14) for member in members(n, encoded_png(n))][::-1]
    write_tar(first, content)
    assert first.stat().st_size == size  # tars are padded to 10 KiB
    os.utime(first, ns=(0, first.stat().st_mtime_ns + 1))
    changed = ShardSet(str(folder))
    assert changed.digest() != before
    locations = record_index([changed])
    texts = [read_group(location).texts[0] for location in locations]
    assert texts == [f"caption {n}" for n in (13, 12, 11, 10, 4, 5, 6)]


def test_a_folder_that_cannot_be_written_is_indexed_elsewhere(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ShardSet(str(folder)).counts == [4, 3]
    assert not (folder / MANIFEST).exists()
    (index,) = (tmp_path / "home/.cache/vlmtune/webdataset").glob("*.json")
    written = index.stat().st_mtime_ns
    assert ShardSet(str(folder)).counts == [4, 3]
    assert index.stat().st_mtime_ns == written


def test_nothing_to_train_on(tmp_path):
    with refused("run `vlmtune build` first"):
        _ = ShardSet(str(tmp_path)).manifest
    write_tar(tmp_path / "a.tar", [("a.txt", b"a"), ("b.cls", b"1")])
    with refused(r"none of 2 can be used \(first: .*a.tar a has no json, or no image\)"):
        _ = ShardSet(str(tmp_path)).manifest


@pytest.mark.parametrize(
    ("texts", "true", "false"),
    [
        ({"txt": b"a dog\n\n a  cat \n"}, ("a dog", "a cat"), ()),
        ({"json": b'{"caption": null}', "txt": b"a dog"}, ("a dog",), ()),
        ({"json": b'{"captions": ["a", "b"], "negative": "c"}', "txt": b"x"}, ("a", "b"), ("c",)),
        ({"json": b'{"caption": "a", "hard_negatives": ["a", "b"]}'}, ("a",), ("b",)),
        ({"caption.txt": b"a dog\n", "negative.txt": b"a cat"}, ("a dog",), ("a cat",)),
        ({"caption.json": b'["a", "b"]', "url.txt": b"x.org"}, ("a", "b"), ()),
        ({"meta.json": b'{"text": "a"}', "json": b"[1]", "negatives.json": b'"b"'}, ("a",), ("b",)),
    ],
)
def test_captions_of_a_record(texts, true, false, encoded_png):
    held = {"webp": encoded_png(1), **texts}
    raw = RawRecord(Path("s.tar"), "a b", held, {name: (0, len(x)) for name, x in held.items()})
    group = decode_group(raw)
    assert group.texts == (*true, *false)
    assert group.truth.tolist() == [[True] * len(true) + [False] * len(false)]
    assert group.key == "a_b"


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({}, "has no caption"),
        ({"txt": b" \n"}, "has no caption"),
        ({"txt": b"\xff\xfe"}, "malformed text"),
        ({"json": b'{"caption": 3}'}, "malformed text"),
        ({"json": b"[" * 100_000}, "malformed text"),
        ({"png": b"", "txt": b"a"}, "has 2 images"),
    ],
)
def test_unusable_records(texts, reason):
    held = {"jpg": b"", **texts}
    raw = RawRecord(Path("s.tar"), "a", held, {name: (0, len(x)) for name, x in held.items()})
    with pytest.raises(RecordError, match=reason):
        decode_sample(raw)


def test_keys_may_have_folders_and_start_with_a_dot_and_a_slash(tmp_path, encoded_png):
    held = [(f"./{part}/{n}", x) for part in "ab" for n, x in members(0, encoded_png(ord(part)))]
    write_tar(tmp_path / "a.tar", held)
    stream = GroupStream((ShardSet(str(tmp_path)),), 1, train=False)
    groups = [group for batch, _ in stream.batches() for group in batch]
    assert [group.key for group in groups] == ["a_000000000", "b_000000000"]
    assert len({group.image_ids for group in groups}) == 2


def test_an_empty_tar_beside_others_has_no_records(folder, caplog):
    (folder / "empty.tar").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert ShardSet(str(folder)).counts == [4, 3, 0]
    assert "1 of 8 records" in caplog.text
    assert ShardSet(str(folder)).counts == [4, 3, 0]
