import json

import pytest

from data_builders.annotations import ClevrScenes, VisualGenomeGraphs
from vlmtune.errors import UserError


def test_clevr_without_texture(tmp_path):
    thing = {"shape": "cube", "color": "red", "material": "metal", "size": "small"}
    scene = {"image_filename": "CLEVR_val_000003.png", "objects": [thing]}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"scenes": [scene]}))
    (image,) = ClevrScenes(path, tmp_path, ["size", "color"], ["color"]).images()
    assert image.id == "CLEVR_val_000003"
    assert image.file == tmp_path / "CLEVR_val_000003.png"
    (found,) = image.objects
    assert (found.name, found.single, found.multi) == ("cube", ("small", "red"), ("red",))
    assert found.attributes == {"red", "metal", "small"}
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
    said = rf"inside {tmp_path}/in, .*scenes\[1\] of {path} is '{name}': "
    with pytest.raises(UserError, match=said):
        list(ClevrScenes(path, tmp_path / "in").images())


@pytest.mark.parametrize("number", ["../7", "/7"])
def test_visual_genome_ids_outside_the_images_folder_are_refused(tmp_path, number):
    path = tmp_path / "g.json"
    path.write_text(json.dumps([{"image_id": number, "objects": []}]))
    said = rf"inside {tmp_path}/in, .*image '{number}' of {path} is '{number}\.jpg': "
    with pytest.raises(UserError, match=said):
        list(VisualGenomeGraphs(path, tmp_path / "in").images())


def test_visual_genome_urls_outside_the_images_folder_are_refused(tmp_path):
    path, data = tmp_path / "g.json", tmp_path / "d.json"
    path.write_text(json.dumps([{"image_id": 7, "objects": []}]))
    data.write_text(json.dumps([{"image_id": 7, "url": "https://cs.example.edu/../7.jpg"}]))
    with pytest.raises(UserError, match=rf"image '7' of {data} is '\.\./7\.jpg': "):
        list(VisualGenomeGraphs(path, tmp_path / "in", data).images())
