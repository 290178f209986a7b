import json
from pathlib import Path

import pytest

from data_builders.annotations import (
    ClevrScenes,
    VisualGenomeGraphs,
    inside,
    measured_images,
)
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


@pytest.mark.parametrize("name", ["../7.png", "a/../../7.png", "/7.png"])
def test_clevr_files_outside_the_images_folder_are_refused(tmp_path, name):
    path = tmp_path / "s.json"
    scenes = [{"image_filename": file, "objects": []} for file in ("1.png", name)]
    path.write_text(json.dumps({"scenes": scenes}))
    message = rf"inside {tmp_path}/in, .*scenes\[1\] of {path} is '{name}': "
    with pytest.raises(UserError, match=message):
        list(ClevrScenes(path, tmp_path / "in").images())


@pytest.mark.parametrize("number", ["../7", "/7"])
def test_visual_genome_ids_outside_the_images_folder_are_refused(tmp_path, number):
    path = tmp_path / "g.json"
    path.write_text(json.dumps([{"image_id": number, "objects": []}]))
    message = rf"inside {tmp_path}/in, .*image '{number}' of {path} is '{number}\.jpg': "
    with pytest.raises(UserError, match=message):
        list(VisualGenomeGraphs(path, tmp_path / "in").images())


def test_visual_genome_urls_outside_the_images_folder_are_refused(tmp_path):
    path, data = tmp_path / "g.json", tmp_path / "d.json"
    path.write_text(json.dumps([{"image_id": 7, "objects": []}]))
    data.write_text(json.dumps([{"image_id": 7, "url": "https://cs.example.edu/../7.jpg"}]))
    with pytest.raises(UserError, match=rf"image '7' of {data} is '\.\./7\.jpg': "):
        list(VisualGenomeGraphs(path, tmp_path / "in", data).images())


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
