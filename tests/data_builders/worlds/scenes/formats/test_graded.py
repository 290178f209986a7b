"""Graded captions are true and false as they should, as a reader of their words alone sees them."""

import re
from collections import Counter

import pytest

from data_builders.corpora.table import TableBuilder
from data_builders.worlds.scenes.captions import vocabulary
from tests.data_builders.conftest import (
    NOTHING,
    SMALL,
    groups,
    hashes,
    load,
    rendered,
    rows_of,
    truths,
    unseen_of,
)
from tests.data_builders.worlds.scenes.truth import KIND, NOUN, SHAPES, holds, means

OPTIONS = NOTHING | {key: SMALL[key] for key in ("image_size", "min_objects", "max_objects")}
OPTIONS |= {"train": 60, "seed": 7, "stack": 0.3}
TRUE, FALSE = ("exact", "partial"), ("wrong_attribute", "wrong_object", "unrelated")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """A world with graded captions, and the same without."""
    folder = tmp_path_factory.mktemp("graded")
    return rendered(folder / "with", OPTIONS, graded=2), rendered(folder / "without", OPTIONS)


@pytest.fixture(scope="module")
def rows(worlds):
    return rows_of(worlds[0] / "graded/train.csv")


@pytest.fixture(scope="module")
def scenes(worlds):
    listed = load(worlds[0] / "clevr/scenes_train.json")["scenes"]
    return {f"train/{scene['image_filename']}": scene for scene in listed}


def words(text):
    return Counter(word for word in text.split() if word in KIND or word in SHAPES)


def test_two_captions_are_true_and_three_false_as_their_columns_say(rows, scenes):
    assert list(rows[0]) == ["image", *TRUE, *FALSE]
    for row in rows:
        scene = scenes[row["image"]]
        assert all(holds(scene, row[name]) for name in TRUE), row
        assert not any(holds(scene, row[name]) for name in FALSE), row
    for row in rows:
        exact = words(row["exact"])
        assert len(row["partial"].split()) <= len(row["exact"].split())
        assert row["partial"] != row["exact"]
        assert not words(row["partial"]) - exact
        for name, kinds in (("wrong_attribute", KIND), ("wrong_object", SHAPES)):
            lost, won = exact - words(row[name]), words(row[name]) - exact
            assert lost.total() == won.total() == 1, row
            assert set(lost | won) <= set(kinds)
        for noun in re.findall(NOUN, row["unrelated"]):
            assert not means(scenes[row["image"]], noun), row


def test_captions_state_no_unseen_composition_and_rows_of_an_image_differ(rows, worlds):
    pairs = "|".join(rf"\b{color} {shape}\b" for color, shape in unseen_of(worlds[0]))
    known = set(vocabulary())
    for row in rows:
        for name in (*TRUE, *FALSE):
            assert not re.search(pairs, row[name])
            assert set(row[name].split()) <= known
    counted = Counter(row["image"] for row in rows)
    assert len(counted) > 50
    assert set(counted.values()) <= {1, 2}
    assert len({(row["image"], row["exact"]) for row in rows}) == len(rows)
    related = sum(" of " in row["exact"] or " behind " in row["exact"] for row in rows)
    assert 0.2 < related / len(rows) < 0.8


def test_no_other_file_changes(worlds):
    with_graded, without = map(hashes, worlds)
    with_graded.pop("graded/train.csv")
    manifests = [files.pop("manifest.json", None) for files in (with_graded, without)]
    assert with_graded == without
    assert None not in manifests


def test_a_table_of_graded_captions_is_built_into_shards(worlds):
    world = worlds[0]
    columns = {"caption": list(TRUE), "negative": list(FALSE)}
    built = groups(TableBuilder(world / "graded/train.csv", world / "images", columns))
    written: dict[str, dict[str, bool]] = {}
    for row in rows_of(world / "graded/train.csv"):
        truth = {row[name]: name in TRUE for name in (*TRUE, *FALSE)}
        written[row["image"]] = written.get(row["image"], {}) | truth
    assert sorted(map(truths, built), key=str) == sorted(written.values(), key=str)
