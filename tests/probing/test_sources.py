import json

import pytest

from tests.data.test_shards import write_tar
from tests.tiny import encoded, halves
from vlmtune.benchmarks.table_files import write_parquet
from vlmtune.errors import UserError
from vlmtune.probing.sources import any_image, labelled_images

COLOURS = ("red", "green", "blue")


def png(left, right, seed):
    return encoded(halves(left, right, seed))


def write(folder, name, seed):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(COLOURS[seed % 3], "red", seed))
    return path


def facts(images):
    return sorted((image.split, image.label) for image in images)


def test_folders_are_classes_and_splits(tmp_path):
    for i in range(4):
        write(tmp_path, f"train/{'cat' if i < 2 else 'dog'}/{i}.png", i)
        write(tmp_path, f"test/{'cat' if i < 2 else 'dog'}/{i}.png", 10 + i)
    images = labelled_images(tmp_path)
    rows = [("test", "cat"), ("test", "dog"), ("train", "cat"), ("train", "dog")]
    assert facts(images) == sorted(2 * rows)
    assert images[0].open().size == (8, 8)
    few = labelled_images(tmp_path, limit=3)
    assert [x.split for x in few] == ["train"] * 3 + ["test"] * 3


def test_images_without_splits_are_split_by_content(tmp_path):
    for i in range(60):
        write(tmp_path, f"{i}.png", i)
    images = labelled_images(tmp_path)
    tested = {x.digest for x in images if x.split == "test"}
    assert len(images) == 60
    assert 3 <= len(tested) <= 25
    assert {x.label for x in images} == {""}
    (tmp_path / "copies").mkdir()
    for i in range(60):
        (tmp_path / f"{i}.png").rename(tmp_path / "copies" / f"{59 - i}.png")
    assert {x.digest for x in labelled_images(tmp_path) if x.split == "test"} == tested


def test_splits_are_known_in_any_case(tmp_path, caplog):
    rows = ["image,split"]
    for i in range(40):
        folder = "Training" if i < 30 else "Test"
        write(tmp_path, f"{folder}/{i}.png", i)
        rows.append(f"{folder}/{i}.png,{folder.upper()}")
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    table = labelled_images(tmp_path / "rows.csv")  # it needs no captions
    assert facts(table) == [("test", "")] * 10 + [("train", "")] * 30
    (tmp_path / "Training").rename(tmp_path / "Train")
    assert facts(labelled_images(tmp_path)) == facts(table)
    assert not caplog.text
    (tmp_path / "Train").rename(tmp_path / "dev")
    labelled_images(tmp_path)
    assert "is called train: one image in 5 tests" in caplog.text


def test_an_image_is_used_once(tmp_path, caplog):
    for i in range(4):
        write(tmp_path, f"train/{i}.png", i)
        write(tmp_path, f"test/{i}.png", 2 + i)
    with caplog.at_level("INFO", "vlmtune"):
        images = labelled_images(tmp_path)
    assert len(images) == len({x.digest for x in images}) == 6
    assert ": 2 images; each is used once" in caplog.text


@pytest.mark.parametrize("classes", [("green", "red"), (0, 1)])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_column_is_the_label(tmp_path, classes, form):
    rows = []
    for i in range(6):
        image = write(tmp_path, f"{i}.png", i).name
        if form == "parquet":  # as the hub has images and classes
            image = {"bytes": (tmp_path / image).read_bytes(), "path": None}
        split = "train" if i < 4 else "val"
        rows.append({"image": image, "kind": classes[i % 2], "split": split})
    table = tmp_path / f"rows.{form}"
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        write_parquet(table, rows)
    else:
        table.write_text("\n".join(map(json.dumps, rows)))
    first, second = map(str, classes)
    assert facts(labelled_images(table, "kind")) == [
        *(("test", first), ("test", second)),
        *(("train", first), ("train", first), ("train", second), ("train", second)),
    ]
    assert facts(labelled_images(table)) == [("test", "")] * 2 + [("train", "")] * 4


def test_a_member_of_a_tar_is_the_label(tmp_path, caplog):
    records = []
    for i in range(40):
        cells = json.dumps({"caption": "a thing", "kind": COLOURS[i % 2]}).encode()
        records.append({"png": png("red", "blue", i), "cls": str(i % 3).encode(), "json": cells})
    write_records(tmp_path / "0.tar", records)
    images = labelled_images(tmp_path, "cls")
    assert {x.label for x in images} == {"0", "1", "2"}
    assert images[0].open().size == (8, 8)
    assert {x.label for x in labelled_images(tmp_path, "kind")} == {"red", "green"}
    # A record whose json is cut off is damaged, however whole its image is.
    write_records(tmp_path / "0.tar", [{**records[0], "json": b'{"kind": '}, *records[1:]])
    assert len(labelled_images(tmp_path, "kind")) == 39
    assert f"1 damaged records of {tmp_path} are left out" in caplog.text
    # ImageNet's form, without captions: an image and the number of its class.
    bare = [{"png": record["png"], "cls": record["cls"]} for record in records]
    write_records(tmp_path / "0.tar", bare)
    assert {x.label for x in labelled_images(tmp_path, "cls")} == {"0", "1", "2"}
    assert {x.label for x in labelled_images(tmp_path)} == {""}
    with pytest.raises(UserError, match=r"expected 'nope' in .*"):
        labelled_images(tmp_path, "nope")


def write_records(path, records):
    members = []
    for i, record in enumerate(records):
        members += [(f"{i:03}.{name}", data) for name, data in record.items()]
    write_tar(path, members)


def five_classes(folder):
    """Unequal classes, in two splits."""
    for i in range(40):
        kind = "abcde"[(0, 0, 0, 0, 1, 1, 2, 2, 3, 4)[i % 10]]
        write(folder, f"{'train' if i < 20 else 'test'}/{kind}/{i}.png", i)


def test_any_image_needs_no_classes_and_no_splits(tmp_path):
    write(tmp_path, "test/a/0.png", 0)
    write(tmp_path, "train/b/1.png", 1)
    assert any_image(tmp_path).size == (8, 8)
    (tmp_path / "test/a/0.png").write_bytes(b"broken")
    assert any_image(tmp_path).size == (8, 8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        any_image(tmp_path / "empty")


@pytest.mark.parametrize("limit", [2, 4, 5, 10])
def test_a_limit_takes_images_of_each_class(limit, tmp_path, caplog):
    five_classes(tmp_path)
    images = labelled_images(tmp_path, limit=limit)
    for split in ("train", "test"):
        labels = [x.label for x in images if x.split == split]
        assert len(labels) == limit
        assert set(labels) == set("abcde"[:limit])
        assert max(map(labels.count, "abcde")) == -(-limit // 5)
    assert ("classes are left out: raise --limit" in caplog.text) == (limit < 5)
    again = labelled_images(tmp_path, limit=limit)
    assert [x.digest for x in images] == [x.digest for x in again]


def test_a_broken_image_is_left_out_and_counted(tmp_path, caplog):
    five_classes(tmp_path)
    (tmp_path / "train/a/broken.png").write_bytes(png("red", "blue", 1)[:40])
    for limit in (None, 20):
        images = labelled_images(tmp_path, limit=limit)
        assert [x.split for x in images] == ["train"] * 20 + ["test"] * 20
    assert f"left out of {tmp_path}: 1 image, first: expected an image" in caplog.text
    for path in (tmp_path / "train").rglob("*.png"):
        path.write_bytes(f"broken {path}".encode())
    with pytest.raises(UserError, match="got 0 and"):
        labelled_images(tmp_path)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="a folder, got"):
        labelled_images(tmp_path / "nowhere")
    write(tmp_path, "train/a/0.png", 0)
    write(tmp_path, "train/a/1.png", 1)
    write(tmp_path, "test/a/2.png", 2)
    with pytest.raises(UserError, match="got 2 and 1: add images"):
        labelled_images(tmp_path)
    write(tmp_path, "test/b/3.png", 3)
    with pytest.raises(UserError, match="got 'b' in testing alone"):
        labelled_images(tmp_path)
    with pytest.raises(UserError, match=r"expected 'kind' in .*, as a key of a \.json"):
        labelled_images(tmp_path, "kind")
    (tmp_path / "train/a/0.json").write_text('{"kind": "x"}')
    (tmp_path / "train/a/1.json").write_text('{"kind": null}')
    with pytest.raises(UserError, match="3 of 4 have none"):
        labelled_images(tmp_path, "kind")
