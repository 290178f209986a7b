import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.refusals import refused
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet, decode_group
from vlmtune.data.tar_records import Damage, RawRecord, read_records


def keys(items: list[RawRecord | Damage]) -> list[str]:
    return [item.key if isinstance(item, RawRecord) else "!" for item in items]


def record_json(key: str) -> bytes:
    return json.dumps(
        {
            "version": 1,
            "images": [{"id": key, "file": "0.png", "true": ["t"]}],
            "texts": [{"id": "t", "text": "a caption"}],
            "truth": [[1]],
            "exhaustive": False,
        }
    ).encode()


def write_tar(path: Path, members: list[tuple[str, bytes | str]]) -> Path:
    """Writes files, or links where the content is a string (its target)."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_any_count_reads_exactly_its_records_and_a_cut_loses_nothing_before_it(make_set, tmp_path):
    file = make_set(5).files[0]
    for count in range(6):
        assert keys(list(read_records(file, count))) == [f"r{i}" for i in range(count)]
    content = make_set(3).files[0].read_bytes()
    path = tmp_path / "cut.tar"
    for length in range(0, len(content), 701):
        path.write_bytes(content[:length])
        items = list(read_records(path, 3))
        good = keys(items).index("!") if "!" in keys(items) else 3
        assert keys(items) == [f"r{i}" for i in range(good)] + ["!"] * (3 - good)
        assert not any("\n" in str(item) for item in items if isinstance(item, Damage))


def test_groups_and_places_of_images_are_those_that_were_written(make_set):
    raw = next(iter(read_records(make_set(1).files[0], 1)))
    group = decode_group(raw)
    assert group.image_ids == ("image-r0-0", "image-r0-1")
    assert group.texts == ("caption r0-0", "caption r0-1")
    assert group.truth.int().tolist() == [[1, 0], [0, 1]]
    assert group.true_ids == (frozenset({"text-r0-0"}), frozenset({"text-r0-1"}))
    assert [image.getpixel((0, 0)) for image in group.images] == [(0, 10, 20), (1, 10, 20)]
    assert decode_group(raw, images=False).images is None
    file = make_set(2).files[0]
    content = file.read_bytes()
    both = (read_records(file, 2, images=images) for images in (True, False))
    for whole, json_only in zip(*both, strict=True):
        assert list(json_only.members) == ["json"]
        assert whole.spans == json_only.spans
        for name, (offset, size) in json_only.spans.items():
            assert content[offset : offset + size] == whole.members[name]


@pytest.mark.parametrize("name", ["/etc/b.0.png", "../b.0.png", "x/../../b.0.png"])
def test_paths_in_names_are_damage_of_their_record_alone(name, tmp_path, encoded_png):
    members: list[tuple[str, bytes | str]] = []
    for key in "abc":
        members.append((name if key == "b" else f"{key}.0.png", encoded_png(1)))
        members.append((f"{key}.json", record_json(key)))
    items = list(read_records(write_tar(tmp_path / "s.tar", members), 3))
    assert keys(items) == ["a", "!", "c"]
    assert "a path that leaves the tar" in str(items[1])


def test_links_are_damage(tmp_path, encoded_png):
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded_png(1))
    members = [("a.0.png", str(secret)), ("a.json", record_json("a"))]
    (item,) = read_records(write_tar(tmp_path / "s.tar", members), 1)
    assert isinstance(item, Damage)
    assert "link" in str(item)


@pytest.mark.parametrize("kind", ["garbage", "gz", "missing", "twice"])
def test_a_damaged_tar_never_raises_and_keeps_the_count(kind, tmp_path, make_set, encoded_png):
    content = make_set(6).files[0].read_bytes()
    path = tmp_path / "s.tar"
    if kind == "garbage":
        half = len(content) // 2 // 512 * 512
        path.write_bytes(content[:half] + b"\xff" * (len(content) - half))
    elif kind == "gz":
        with tarfile.open(path, "w:gz"):
            pass
    elif kind == "twice":
        write_tar(path, [("a.0.png", encoded_png(1)), ("a.0.png", encoded_png(2))])
    items = list(read_records(path, 6))
    assert len(items) == 6
    assert isinstance(items[-1], Damage)
    assert all("\n" not in str(item) for item in items if isinstance(item, Damage))
    if kind == "garbage":
        assert isinstance(items[0], RawRecord)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"json": None}, "has no json"),
        ({"json": b"{"}, "malformed json"),
        ({"json": b"{}"}, "malformed record"),
        ({"json": b"[" * 100_000}, "malformed json"),
        ({"0.png": None}, "no image"),
        ({"0.png": None, "1.png": b"x"}, "lacks image 0.png"),
        ({"0.png": b"x"}, "image refused"),
    ],
)
def test_bad_members_are_record_errors(change, reason, encoded_png):
    members = {"0.png": encoded_png(1), "json": record_json("a"), **change}
    present = {name: content for name, content in members.items() if content is not None}
    raw = RawRecord(Path("s.tar"), "a", present, dict.fromkeys(present, (0, 0)))
    with pytest.raises(RecordError, match=reason):
        decode_group(raw)


def test_sets_say_what_is_wrong(make_set, tmp_path):
    with refused("run `vlmtune build` first"):
        _ = ShardSet(str(tmp_path / "none")).manifest
    data = make_set(3)
    content = data.files[0].read_bytes()
    data.files[0].write_bytes(content[:-1])
    with refused("got 10239 bytes: build the shards again"):
        _ = ShardSet(data.path).manifest
    data.files[0].unlink()
    with refused("got no such file"):
        _ = ShardSet(data.path).manifest


def test_digest_depends_on_the_records_alone(make_set):
    data = make_set(3)
    assert data.digest() == ShardSet(data.path, weight=2.0).digest()
    assert data.digest() != make_set(3, prefix="q").digest()
    remote = {"cache": None, "cache_bytes": 50 * 2**30}
    assert data.spec()["init_args"] == {"path": data.path, "weight": 1.0, **remote}
    assert data.counts == [3]
