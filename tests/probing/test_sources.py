"""Images, labels and splits from folders, tables and tars."""

import io
import json
import tarfile

import pytest

from tests.tiny import halves
from vlmtune.errors import UserError
from vlmtune.probing.sources import labelled_images

COLOURS = ("red", "green", "blue")


def png(left, right, seed):
    buffer = io.BytesIO()
    halves(left, right, seed).save(buffer, "PNG")
    return buffer.getvalue()


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


def test_an_image_is_used_once(tmp_path, caplog):
    for i in range(4):
        write(tmp_path, f"train/{i}.png", i)
        write(tmp_path, f"test/{i}.png", 2 + i)
    with caplog.at_level("INFO", "vlmtune"):
        images = labelled_images(tmp_path)
    assert len(images) == len({x.digest for x in images}) == 6
    assert "2 images occur twice" in caplog.text


def test_a_column_is_the_label(tmp_path):
    rows = []
    for i in range(6):
        write(tmp_path, f"{i}.png", i)
        rows.append({"image": f"{i}.png", "kind": COLOURS[i % 2], "split": "train"})
        rows[-1]["split"] = "train" if i < 4 else "val"
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    assert facts(labelled_images(table, "kind")) == [
        *(("test", "green"), ("test", "red")),
        *(("train", "green"), ("train", "green"), ("train", "red"), ("train", "red")),
    ]


def test_a_member_of_a_tar_is_the_label(tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for i in range(40):
            cells = json.dumps({"caption": "a thing", "kind": COLOURS[i % 2]}).encode()
            members = {"png": png("red", "blue", i), "cls": str(i % 3).encode(), "json": cells}
            for name, data in members.items():
                info = tarfile.TarInfo(f"{i:03}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    images = labelled_images(tmp_path, "cls")
    assert {x.label for x in images} == {"0", "1", "2"}
    assert images[0].open().size == (8, 8)
    assert {x.label for x in labelled_images(tmp_path, "kind")} == {"red", "green"}


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="there is no such path"):
        labelled_images(tmp_path / "nowhere")
    write(tmp_path, "train/a/0.png", 0)
    write(tmp_path, "train/a/1.png", 1)
    write(tmp_path, "test/a/2.png", 2)
    with pytest.raises(UserError, match="got 2 and 1: add images"):
        labelled_images(tmp_path)
    write(tmp_path, "test/b/3.png", 3)
    with pytest.raises(UserError, match="got 'b' in testing alone"):
        labelled_images(tmp_path)
    with pytest.raises(UserError, match=r"expected 'kind' in the \.json next to"):
        labelled_images(tmp_path, "kind")
    (tmp_path / "train/a/0.json").write_text('{"kind": "x"}')
    with pytest.raises(UserError, match="3 of 4 have none"):
        labelled_images(tmp_path, "kind")
