import json
from pathlib import Path

import pytest

from data_builders.corpora.coco import CocoBuilder
from data_builders.corpora.flickr30k import Flickr30kBuilder
from data_builders.corpora.karpathy import KarpathyBuilder
from tests.data_builders.conftest import dump
from tests.data_builders.pictures import JPEG, encoded
from tests.refusals import refused
from vlmtune.data.schema import read_manifest


def dataset(folder: Path, images: list[dict]) -> Path:
    path = dump(folder / "dataset.json", {"images": images, "dataset": "x"})
    for image in images:
        file = folder / image.get("filepath", "") / image["filename"]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(JPEG)
    return path


def image(name: str, split: str, *raws: str, **more: str) -> dict:
    return {"filename": name, "split": split, "sentences": [{"raw": r} for r in raws], **more}


def test_equal_captions_of_an_image_are_one_and_unknown_splits_refused(tmp_path):
    path = dataset(
        tmp_path,
        [
            image("1.jpg", "train", "A man .", "A  man .\n", "A dog.", " "),
            image("2.jpg", "train", "A dog."),
            image("3.jpg", "test", "A cat."),
            image("4.jpg", "train", "  "),
        ],
    )
    builder = Flickr30kBuilder(path, tmp_path)
    groups = [group for group, _ in builder.records()]
    assert [g.texts for g in groups] == [("A man .", "A dog."), ("A dog.",)]
    assert all(group.truth.all() for group in groups)
    assert groups[0].text_ids[1] == groups[1].text_ids[0]
    assert builder.counts == {"captions": 3, "skipped: no caption": 1}
    assert [line.text() for line in builder.left_out.lines] == [f"{tmp_path}/4.jpg: no caption"]
    path = dataset(tmp_path, [image("1.jpg", "train", "x")])
    with refused(r"expected splits out of \['train'\].*'trian'"):
        list(KarpathyBuilder(path, tmp_path, ["trian"]).records())


def test_coco_reads_subfolders_and_both_training_splits(tmp_path):
    path = dataset(
        tmp_path,
        [
            image("a_1.jpg", "train", "x", filepath="train2014"),
            image("a_1.jpg", "restval", "y", filepath="val2014"),
            image("a_3.jpg", "val", "z", filepath="val2014"),
        ],
    )
    records = list(CocoBuilder(path, tmp_path, ["train", "restval"]).records())
    assert [g.image_ids[0] for g, _ in records] == ["train2014/a_1.jpg", "val2014/a_1.jpg"]
    assert len({g.key for g, _ in records}) == 2
    assert records[1][1] == [tmp_path / "val2014/a_1.jpg"]


def coco_json(path: Path) -> Path:
    """COCO's own layout: captions of an image apart from it, in any order."""
    images = [{"id": 9, "file_name": "9.jpg", "license": 1}, {"id": 7, "file_name": "7.jpg"}]
    annotations = [
        {"image_id": 7, "id": 1, "caption": "A dog."},
        {"image_id": 9, "id": 2, "caption": "A cat.\n"},
        {"image_id": 7, "id": 3, "caption": "A pet."},
        {"image_id": 7, "id": 4, "caption": "A  dog."},
    ]
    path.write_text(json.dumps({"info": {}, "images": images, "annotations": annotations}))
    return path


@pytest.mark.parametrize("subfolder", ["", "train2017"])
def test_cocos_own_file(subfolder, tmp_path):
    path = coco_json(tmp_path / "captions_train2017.json")
    folder = tmp_path / "images" / subfolder
    folder.mkdir(parents=True)
    for name in ("7.jpg", "9.jpg"):
        (folder / name).write_bytes(JPEG)
    records = list(CocoBuilder(path, tmp_path / "images").checked_records())
    assert [(group.texts, images) for group, images in records] == [
        (("A cat.",), [folder / "9.jpg"]),
        (("A dog.", "A pet."), [folder / "7.jpg"]),
    ]
    with refused("got COCO's own: use `vlmtune build coco`"):
        list(KarpathyBuilder(path, tmp_path).records())
    path.write_text(
        '{"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"image_id": 2}]}'
    )
    with refused("expected captions of COCO.* got no caption of its 1 image:"):
        list(CocoBuilder(path, tmp_path).records())


def test_measured_images_are_left_out_by_content_too(tmp_path, capsys):
    rows = [image(f"{n}.jpg", "train", f"c{n}") for n in range(5)]
    path = dataset(tmp_path, rows)
    for n in range(4):  # 4.jpg has the bytes that `dataset` wrote
        (tmp_path / f"{n}.jpg").write_bytes(encoded(shade=40 * n))
    (tmp_path / "test").mkdir()
    (tmp_path / "test/x.jpg").write_bytes(encoded(shade=40))
    names = tmp_path / "of_benchmark/dataset.json"  # has the name of the annotations
    names.parent.mkdir()
    names.write_text('[{"filename": "far/3.jpg"}]')
    builder = KarpathyBuilder(path, tmp_path, measured=[tmp_path / "test", names])
    (tmp_path / "2.jpg").unlink()
    assert [group.image_ids for group, _ in builder.records()] == [("0.jpg",), ("4.jpg",)]
    assert builder.counts["skipped: measured"] == 2
    assert builder.counts["skipped: image missing"] == 1
    builder.build(tmp_path / "out", progress=False, max_left_out=0.5)
    assert set(read_manifest(tmp_path / "out").sources) == {
        "dataset.json", "dataset.json (2)", "images of measured"}  # fmt: skip
    (tmp_path / "test/x.jpg").write_bytes(encoded(shade=0))
    with refused("holds something else"):
        builder.build(tmp_path / "out", progress=False)


@pytest.mark.parametrize("row", [{"filename": "../other/2.jpg"}, {"filepath": "/other"}])
def test_files_outside_the_images_folder_are_refused(tmp_path, row):
    images = [image("1.jpg", "train", "x"), {**image("2.jpg", "train", "y"), **row}]
    path = dump(tmp_path / "dataset.json", {"images": images})
    for name in ("in/1.jpg", "other/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(JPEG)
    message = rf"inside {tmp_path}/in, .*images\[1\] of {path} is '[./]*/other/2\.jpg': "
    with refused(message):
        list(KarpathyBuilder(path, tmp_path / "in").records())


def test_annotations_of_coco_that_cannot_be_used_are_listed_by_position(tmp_path, capsys):
    (tmp_path / "1.jpg").write_bytes(JPEG)
    annotations = [
        {"image_id": 1, "caption": "a dog"},
        {"image_id": 7, "caption": "a cat"},
        {"image_id": 1},
    ]
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": annotations}
    path = dump(tmp_path / "captions.json", content)
    CocoBuilder(path, tmp_path).build(tmp_path / "out", progress=False)
    counts = read_manifest(tmp_path / "out").counts
    assert counts["skipped: annotation of an unknown image"] == 1
    assert f"annotations[1] of {path}: annotation of an unknown image: 7" in capsys.readouterr().err
    path.write_text(json.dumps({"annotations": []}))
    with refused("expected captions of COCO"):
        CocoBuilder(path, tmp_path).build(tmp_path / "other", progress=False)
