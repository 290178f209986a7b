"""What training lacks: its texts never state it, and the tests' sentences are true and false."""

import json
import re

import pytest

from data_builders.worlds.scenes.captions import vocabulary
from tests.data_builders.conftest import (
    SMALL,
    load,
    rendered,
    rows_of,
    scenes_of,
    training_texts,
    unseen_of,
)
from tests.data_builders.worlds.scenes.truth import fits, holds
from vlmtune.benchmarks.table_abilities import TableAbilities
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice
from vlmtune.benchmarks.table_retrieval import TableRetrieval

UNREAD = {"purple", "brown"}
WORLD = SMALL | {"foils": 3, "long_foils": 1, "placements": 2, "unread_colors": sorted(UNREAD)}
WORLD |= {"held_out": 40, "stack": 0.0, "max_objects": 3, "textures": ["plain"]}
WORLD |= {"sizes": ["large"], "unseen": [[["red", "blue"], ["cube", "cylinder", "sphere"]]]}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("held_out") / "world", WORLD, processes=1)


@pytest.fixture(scope="module")
def scenes(held_out):
    return scenes_of(held_out, "scenes_held_out_*.json")


@pytest.fixture(scope="module")
def texts(held_out):
    return training_texts(held_out, single=2, misbound=2, half_wrong=2)


def test_training_neither_shows_nor_names_unread_colours(held_out, texts):
    for split in ("train", "val"):
        for scene in load(held_out / f"clevr/scenes_{split}.json")["scenes"]:
            assert UNREAD.isdisjoint(obj["color"] for obj in scene["objects"])
    assert len(texts) > 200
    assert not [text for text in texts if UNREAD & set(re.findall(r"\w+", text))]
    unread = load(held_out / "cola/multi_unread.json")
    for _, first, _, second in unread:
        assert set(first.split()) & UNREAD == set(second.split()) & UNREAD == UNREAD
    assert len(unseen_of(held_out)) == 2 * 3 + 2 * 5


def test_wordings_are_true_and_false_and_in_training_words(held_out, scenes):
    rows = rows_of(held_out / "held_out/wordings.csv")
    groups = {row["group"] for row in rows}
    assert len(groups) == 9
    assert len(rows) > 4 * WORLD["held_out"]
    for row in rows:
        scene = scenes[row["image"].rpartition("/")[2]]
        assert fits(scene, row["caption"], row["group"]), row
        assert not fits(scene, row["negative"], row["group"]), row
        words = set(row["caption"].split())
        assert words <= set(vocabulary()) - UNREAD


def test_structures_are_true_and_false_and_no_number_is_right_more_often(held_out, scenes):
    rows = rows_of(held_out / "held_out/structures.csv")
    assert {row["group"] for row in rows} == {"three objects", "between", "counted"}
    for row in rows:
        scene = scenes[row["image"].rpartition("/")[2]]
        negatives = [row["negative"]]
        if row["group"] == "three objects":
            negatives = json.loads(row["negative"])
            assert len(negatives) <= 5
        assert fits(scene, row["caption"], row["group"]), row
        assert not any(fits(scene, text, row["group"]) for text in negatives), row
    counted = [row for row in rows if row["group"] == "counted"]
    assert len(counted) == WORLD["held_out"]
    two = [row for row in counted if "two" in row["caption"]]
    assert 0.3 < len(two) / len(counted) < 0.7
    assert all({"two", "three"} & set(row["negative"].split()) for row in counted)


def test_crowded_scenes_have_four_to_eight_objects_of_both_sizes(held_out, scenes):
    rows = rows_of(held_out / "held_out/crowded.csv")
    assert {row["group"] for row in rows} == {"colours", "relations"}
    numbers, sizes = set(), set()
    for row in rows:
        scene = scenes[row["image"].rpartition("/")[2]]
        numbers.add(len(scene["objects"]))
        sizes |= {obj["size"] for obj in scene["objects"]}
        assert holds(scene, row["caption"]), row
        assert not holds(scene, row["negative"]), row
    assert min(numbers) == 4
    assert max(numbers) > 6
    assert sizes == {"small", "large"}


def test_objects_come_in_all_sizes_and_textures(held_out, scenes):
    rows = rows_of(held_out / "held_out/objects.csv")
    said = {word for row in rows for word in row["caption"].split()}
    assert {"small", "large", "striped", "checkered"} <= said
    for row in rows:
        (obj,) = scenes[row["image"].rpartition("/")[2]]["objects"]
        words = [obj["size"], obj["texture"], obj["color"], obj["shape"]]
        stated = [word for word in words if word != "plain"]
        assert row["caption"].split()[1:] == stated


def test_abilities_name_the_object_against_all_other_values(held_out, scenes):
    for row in rows_of(held_out / "held_out/abilities.csv"):
        (obj,) = scenes[row["image"].rpartition("/")[2]]["objects"]
        values = {word for key in ("size", "texture", "shape") for word in [obj[key]]}
        assert len(values & set(row["caption"].split())) >= 1
        negatives = json.loads(row["negative"])
        assert len(negatives) == (4 if row["group"] == "shape" else 1)
        assert obj[row["group"]] in row["caption"].split()
        assert not [text for text in negatives if obj[row["group"]] in text.split()]


def test_benchmarks_read_the_tables(held_out):
    images, folder = str(held_out / "images"), held_out / "held_out"
    columns = {"group": "group"}
    wordings = TableMultipleChoice(str(folder / "wordings.csv"), images, columns)
    assert len(wordings.items.group_sizes()) == 9
    abilities = TableAbilities(str(folder / "abilities.csv"), images, columns)
    assert set(abilities.items.group_sizes()) == {"size", "texture", "shape"}
    assert abilities.kind == "retained"
    assert len(TableRetrieval(str(folder / "objects.csv"), images).items.images) == 20
