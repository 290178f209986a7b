"""Builders and constants agree with the released files of PACO and CLEVR in ../shared/data."""

from pathlib import Path
from typing import Any

import pytest

from data_builders.corpora.paco import PacoObjects
from data_builders.worlds.programs.program import CATALOGUE
from data_builders.worlds.programs.scene_graph import RELATIONS
from data_builders.worlds.scenes.sampling import cogent
from data_builders.worlds.scenes.scene import COLORS, GROUND_RELATIONS, MATERIALS, SHAPES, SIZES
from tests.data_builders.conftest import dump, load, released


def content_of(name: str) -> Any:
    return load(released(name))


def test_paco_has_75_whole_objects_and_55_attributes(tmp_path):
    """One image with each category, parts too, each with every attribute."""
    content = content_of("paco/paco_lvis_v1_categories_attributes.json")
    every = [row["id"] for row in content["attributes"]]
    objects = [{"category_id": row["id"], "attribute_ids": every} for row in content["categories"]]
    content["annotations"] = [{"image_id": 1, **row} for row in objects]
    content["images"] = [{"id": 1, "file_name": "train2017/000000000001.jpg"}]
    (image,) = PacoObjects(dump(tmp_path / "paco.json", content), tmp_path).images()
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
    content = content_of(f"clevr/CoGenT_{condition}.json")
    allowed = {shape: set(colors) for shape, colors in content.items()}
    assert allowed["sphere"] == set(COLORS)
    forbidden = {(color, shape) for shape in allowed for color in set(COLORS) - allowed[shape]}
    assert cogent(condition) == forbidden
    assert len(forbidden) == 8
    if condition == "A":
        unseen = load(Path("configs/experiments/cola/data/clevr_unseen.json"))["unseen"]
        assert {(color, shape) for color, shape in unseen} == forbidden


def test_programs_have_clevrs_basic_functions():
    """All but equal_object; the eight others are templates, made of basic ones."""
    content = content_of("clevr/metadata.json")
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
    content = content_of("clevr/properties.json")
    assert {name: tuple(rgb) for name, rgb in content["colors"].items()} == COLORS
    assert set(content["materials"]) == set(MATERIALS)
    assert set(content["sizes"]) == set(SIZES)  # their radii are the world's
    assert set(content["shapes"]) == set(SHAPES) - {"cone", "torus"}
