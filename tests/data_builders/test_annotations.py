import json
import re
from pathlib import Path

import pytest

from data_builders.annotations import (
    ClevrScenes,
    VisualGenomeGraphs,
    inside,
    measured_images,
)
from data_builders.gqa import GQAGraphs
from data_builders.paco import PacoObjects
from vlmtune.errors import UserError


def test_clevr_without_texture(tmp_path):
    obj = {"shape": "cube", "color": "red", "material": "metal", "size": "small"}
    scene = {"image_filename": "CLEVR_val_000003.png", "objects": [obj]}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"scenes": [scene]}))
    (image,) = ClevrScenes(path, tmp_path, ["size", "color"], ["color"]).images()
    assert image.id == "CLEVR_val_000003"
    assert image.file == tmp_path / "CLEVR_val_000003.png"
    (annotated,) = image.objects
    assert (annotated.name, annotated.single, annotated.multi) == (
        "cube",
        ("small", "red"),
        ("red",),
    )
    assert annotated.attributes == {"red", "metal", "small"}
    with pytest.raises(UserError, match=r"another layout.*texture"):
        list(ClevrScenes(path, tmp_path, ["texture"]).images())


def test_visual_genome_as_distributed(tmp_path):
    graphs = [
        {
            "image_id": 7,
            "objects": [
                {"object_id": 1, "names": ["Plate "], "attributes": ["White", "round", "white"]},
                {"object_id": 2, "names": ["table"], "synsets": []},
                {"object_id": 3, "names": [], "attributes": ["red"]},
                {"object_id": 4, "names": ["cup"], "attributes": None},
            ],
            "relationships": [],
        }
    ]
    data = [{"id": 7, "url": "https://cs.example.edu/people/VG_100K_2/7.jpg"}]
    (tmp_path / "g.json").write_text(json.dumps(graphs))
    (tmp_path / "d.json").write_text(json.dumps(data))
    reader = VisualGenomeGraphs(tmp_path / "g.json", tmp_path, tmp_path / "d.json")
    (image,) = reader.images()
    assert image.file == tmp_path / "7.jpg"  # flat where the folder is not there
    (tmp_path / "VG_100K_2").mkdir()
    (tmp_path / "VG_100K_2/7.jpg").touch()
    (image,) = reader.images()
    assert image.file == tmp_path / "VG_100K_2/7.jpg"
    (plate,) = image.objects
    assert plate.single == ("round", "white")
    assert plate.multi == ("round",)
    assert set(plate.readings) == {("round",), ("white",), ("round", "white")}
    assert reader.spelled(["white", "old"]) == ("old", "white")
    (plain,) = VisualGenomeGraphs(tmp_path / "g.json", tmp_path).images()
    assert plain.file == tmp_path / "7.jpg"


def visual_genome(path: Path, images: Path) -> VisualGenomeGraphs:
    return VisualGenomeGraphs(path, images, path.with_name("data.json"))


PACO = {"annotations": [{"image_id": 3, "category_id": 1, "attribute_ids": [1]}],
        "attributes": [{"id": 1, "name": "red"}],
        "categories": [{"id": 1, "name": "car", "supercategory": "OBJECT"}]}  # fmt: skip
OUTSIDE = [
    *((ClevrScenes, {"scenes": [{"image_filename": name, "objects": []}]}, r"scenes\[0\]", name)
      for name in ("../7.png", "a/../../7.png", "/7.png")),
    *((VisualGenomeGraphs, [{"image_id": id_, "objects": []}], f"image '{id_}'", f"{id_}.jpg")
      for id_ in ("../7", "/7")),
    (visual_genome, [{"image_id": 7, "objects": []}], "image '7'", "../7.jpg"),
    (GQAGraphs, {"../7": {"objects": {}}}, r"image '\.\./7'", "../7.jpg"),
    *((PacoObjects, {**PACO, "images": [{"id": 3, "file_name": name}]}, "image '3'", name)
      for name in ("../3.jpg", "/3.jpg")),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "content", "entry", "name"), OUTSIDE)
def test_files_outside_the_images_folder_are_refused(tmp_path, reader, content, entry, name):
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(content))
    data = [{"image_id": 7, "url": "https://cs.example.edu/../7.jpg"}]
    path.with_name("data.json").write_text(json.dumps(data))
    message = rf"inside {tmp_path}/in, {entry} of {tmp_path}/\w+\.json is '{re.escape(name)}': "
    with pytest.raises(UserError, match=message):
        list(reader(path, tmp_path / "in").images())


@pytest.mark.parametrize("name", ["../a.jpg", "b/../../a.jpg", "b/..", "..", "/a.jpg", "//a.jpg"])
def test_names_that_leave_the_folder(tmp_path, name):
    with pytest.raises(UserError) as error:
        inside(tmp_path, name, Path("rows.json"), "row 3")
    assert str(error.value) == (
        f"expected image files inside {tmp_path}, row 3 of rows.json is {name!r}: "
        "use the file as distributed, or correct that name"
    )


@pytest.mark.parametrize("name", ["a.jpg", "b/a.jpg", "./a.jpg", "..a/b..jpg", Path("b/a.jpg"), ""])
def test_names_that_stay_in_the_folder(tmp_path, name):
    assert inside(tmp_path, name, Path("rows.json"), "row 3") == tmp_path / name


def test_links_in_the_folder_are_followed(tmp_path):
    """Large corpora are often linked into the folder."""
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/a.jpg").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images/train").symlink_to(tmp_path / "linked")
    assert inside(tmp_path / "images", "train/a.jpg", Path("rows.json"), "row 3").is_file()


def test_colas_two_layouts(tmp_path):
    multi, single = tmp_path / "multi.json", tmp_path / "single.json"
    row = ["https://a.org/vg/1.jpg", "a red cup", "https://a.org/vg/2.jpg", "a cup"]
    multi.write_text(json.dumps([row]))
    single.write_text(json.dumps({"labels": ["red cup"], "data": [["images/3.JPG", [], [1]]]}))
    assert measured_images([multi, single]) == {"1", "2", "3"}
    assert measured_images([]) == frozenset()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "JSONDecodeError"), ('{"1.jpg": ["a cup", 4]}', "got none")],
)
def test_another_file_is_refused(tmp_path, content, message):
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        measured_images([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
