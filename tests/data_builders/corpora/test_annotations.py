import json
import re
from pathlib import Path

import pytest

from data_builders.corpora.annotations import ClevrScenes, VisualGenomeGraphs, inside
from data_builders.corpora.gqa import GQAGraphs
from data_builders.corpora.paco import PacoObjects
from tests.data_builders.conftest import dump
from tests.refusals import refused


def test_clevr_without_texture(tmp_path):
    obj = {"shape": "cube", "color": "red", "material": "metal", "size": "small"}
    shown = obj | {"pixel_coords": [120, 240, 9.5]}
    scene = {"image_filename": "CLEVR_val_000003.png", "objects": [shown]}
    path = dump(tmp_path / "s.json", {"scenes": [scene]})
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
    assert annotated.center == (0.25, 0.75)  # of 480 x 320, which CLEVR's files do not state
    with refused(r"another layout.*texture"):
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
    path = dump(tmp_path / "annotations.json", content)
    data = [{"image_id": 7, "url": "https://cs.example.edu/../7.jpg"}]
    path.with_name("data.json").write_text(json.dumps(data))
    message = rf"inside {tmp_path}/in, {entry} of {tmp_path}/\w+\.json is '{re.escape(name)}': "
    with refused(message):
        list(reader(path, tmp_path / "in").images())


def test_names_that_stay_in_the_folder_and_links_in_it(tmp_path):
    for name in ("a.jpg", "b/a.jpg", "./a.jpg", "..a/b..jpg", Path("b/a.jpg"), ""):
        assert inside(tmp_path, name, Path("rows.json"), "row 3") == tmp_path / name
    # Large corpora are often linked into the folder.
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/a.jpg").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images/train").symlink_to(tmp_path / "linked")
    assert inside(tmp_path / "images", "train/a.jpg", Path("rows.json"), "row 3").is_file()


def test_relations_of_the_three_formats(tmp_path):
    """Objects without attributes are left out, and so are their relations."""
    objects = {1: ("cup", ["red"]), 2: ("table", []), 3: ("shelf", ["old"]), 4: ("box", ["blue"])}
    stated = [(1, "On ", 3), (1, "near", 2), (4, "to the left of", 1), (3, "on", 3), (9, "on", 1)]
    graph = {
        "image_id": 7,
        "objects": [
            {"object_id": k, "names": [n], "attributes": a} for k, (n, a) in objects.items()
        ],
        "relationships": [{"subject_id": i, "predicate": r, "object_id": j} for i, r, j in stated],
    }
    gqa: dict = {
        str(k): {"name": n, "attributes": a, "relations": []} for k, (n, a) in objects.items()
    }
    for i, r, j in stated[:-1]:
        gqa[str(i)]["relations"].append({"name": r, "object": str(j)})
    gqa["4"]["relations"] = gqa["4"]["relations"][0]  # one alone, as in the example of GQA's site
    (tmp_path / "vg.json").write_text(json.dumps([graph]))
    (tmp_path / "gqa.json").write_text(json.dumps({"7": {"objects": gqa}}))
    expected = {("red cup", "on", "old shelf"), ("blue box", "to the left of", "red cup")}
    for reader in (VisualGenomeGraphs(tmp_path / "vg.json", tmp_path),
                   GQAGraphs(tmp_path / "gqa.json", tmp_path)):  # fmt: skip
        (image,) = reader.images()
        names = [f"{o.single[0]} {o.name}" for o in image.objects]
        assert {(names[i], r, names[j]) for i, r, j in image.relations} == expected
    # Of CLEVR, `relationships["left"][0] == [1]` says that object 1 is left of object 0.
    things = [{"shape": s, "color": "red", "size": "small", "material": "metal"} for s in "ab"]
    scene = {"image_filename": "a.png", "objects": things,
             "relationships": {"left": [[1], []], "right": [[], [0]]}}  # fmt: skip
    (tmp_path / "clevr.json").write_text(json.dumps({"scenes": [scene]}))
    (image,) = ClevrScenes(tmp_path / "clevr.json", tmp_path).images()
    assert set(image.relations) == {(1, "to the left of", 0), (0, "to the right of", 1)}


def test_clear_relations_are_stated_and_of_no_object_on_the_other(tmp_path):
    cube = {"shape": "cube", "color": "red", "material": "metal"}
    objects = [{**cube, "3d_coords": (x, 0.0, 0.0)} for x in (0.0, 1.0, 2.0)]
    objects[1]["on"] = 0
    scene = {"image_filename": "a.png", "objects": objects,
             "directions": {"right": (1.0, 0.0, 0.0), "behind": (0.0, 1.0, 0.0)},
             "relationships": {"right": [[1, 2], [2], []], "left": [[], [0], [0, 1]]}}  # fmt: skip
    without = {key: value for key, value in scene.items() if key != "relationships"}
    path = dump(tmp_path / "clevr.json", {"scenes": [scene, without]})
    image, unrelated = ClevrScenes(path, tmp_path, clear=True).images()
    assert {(i, j) for i, _, j in image.clear or ()} == {(0, 2), (2, 0), (1, 2), (2, 1)}
    assert len(image.relations) == 6
    assert unrelated.clear == ()
