"""Builders and constants agree with the released files of PACO and CLEVR in ../shared/data."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_builders.corpora.paco import PacoObjects
from data_builders.worlds.programs.functions import CATALOGUE
from data_builders.worlds.programs.scene_graph import RELATIONS
from data_builders.worlds.scenes.sampling import cogent
from data_builders.worlds.scenes.scene import COLORS, GROUND_RELATIONS, MATERIALS, SHAPES, SIZES

SHARED = Path(__file__).parents[2] / "../shared/data"


def released(name: str) -> Any:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs {path.name} in ../shared/data/{path.parent.name}")
    return json.loads(path.read_text())


def test_paco_has_75_whole_objects_and_55_attributes(tmp_path):
    """One image with each category, parts too, each with every attribute."""
    content = released("paco/paco_lvis_v1_categories_attributes.json")
    every = [row["id"] for row in content["attributes"]]
    file = tmp_path / "paco.json"
    file.write_text(json.dumps({
        **content,
        "images": [{"id": 1, "file_name": "train2017/000000000001.jpg"}],
        "annotations": [{"image_id": 1, "category_id": row["id"], "attribute_ids": every}
                        for row in content["categories"]],
    }))  # fmt: skip
    (image,) = PacoObjects(file, tmp_path).images()
    whole = [r["name"] for r in content["categories"] if r["supercategory"] == "OBJECT"]
    stated = [r["name"] for r in content["attributes"] if not r["name"].startswith("other(")]
    assert (len(whole), len(stated), len(every)) == (75, 55, 59)
    assert len(content["categories"]) > 75
    names = {obj.name for obj in image.objects}
    assert len(image.objects) == len(names) == 75
    assert all(obj.attributes == image.objects[0].attributes for obj in image.objects)
    attributes = image.objects[0].attributes
    assert len(attributes) == 55
    for read, written in ((names, whole), (attributes, stated)):
        first = {name.split("(")[0].strip("_").replace("_", " ") for name in written}
        assert {name.split("(")[0].strip() for name in read} == first


@pytest.mark.parametrize("condition", ["A", "B"])
def test_cogent_forbids_what_the_released_condition_does_not_list(condition):
    allowed = {
        shape: set(colors) for shape, colors in released(f"clevr/CoGenT_{condition}.json").items()
    }
    assert allowed["sphere"] == set(COLORS)
    forbidden = {(color, shape) for shape in allowed for color in set(COLORS) - allowed[shape]}
    assert cogent(condition) == forbidden
    assert len(forbidden) == 8


def test_the_conditions_are_each_others_reverse():
    a, b = (released(f"clevr/CoGenT_{condition}.json") for condition in "AB")
    assert (set(a["cube"]), set(a["cylinder"])) == (set(b["cylinder"]), set(b["cube"]))
    assert cogent("A").isdisjoint(cogent("B"))


def test_programs_have_clevrs_basic_functions():
    """All but equal_object; the eight others are templates, made of basic ones."""
    content = released("clevr/metadata.json")
    functions = {row["name"]: row for row in content["functions"]}
    basic = {name: row for name, row in functions.items() if not row.get("template_only")}
    assert (len(functions), len(basic)) == (35, 27)
    assert set(CATALOGUE) == set(basic) - {"equal_object"}
    kinds = {"ObjectSet": "objectset", "Bool": "boolean"}
    for name, function in CATALOGUE.items():
        row = basic[name]
        types = [
            t.value.replace(" ", "").replace("_", "") for t in (*function.inputs, function.output)
        ]
        assert types == [kinds.get(t, t.lower()) for t in (*row["inputs"], row["output"])], name
        sides = [side.lower() for side in row.get("side_inputs", ())]
        assert [side for side in [function.side] if side] == sides, name
    types = content["types"]
    assert set(types["Relation"]) == set(RELATIONS) == set(GROUND_RELATIONS)
    assert set(types["Shape"]) == set(SHAPES) - {"cone", "torus"}


def test_the_world_has_clevrs_colours_materials_sizes_and_shapes():
    content = released("clevr/properties.json")
    assert {name: tuple(rgb) for name, rgb in content["colors"].items()} == COLORS
    assert set(content["materials"]) == set(MATERIALS)
    assert set(content["sizes"]) == set(SIZES)  # their radii are the world's
    assert set(content["shapes"]) == set(SHAPES) - {"cone", "torus"}
