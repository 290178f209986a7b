import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from data_builders.corpora.table import TableBuilder
from data_builders.worlds.scenes.world import ScenesBuilder
from tests.data_builders.conftest import (
    NOTHING,
    SMALL,
    composed,
    groups,
    hashes,
    load,
    rendered,
    rows_of,
    unseen_of,
)
from tests.refusals import refused
from vlmtune.cli.main import main


def test_same_arguments_same_bytes_and_another_seed_another_world(world, tmp_path):
    assert hashes(rendered(tmp_path / "again", SMALL, processes=1)) == hashes(world)
    rendered(tmp_path / "w", SMALL | NOTHING, train=2, seed=8)
    image = "images/train/train_000000.png"
    assert (tmp_path / "w" / image).read_bytes() != (world / image).read_bytes()
    assert not (tmp_path / "w/cola").exists()


def test_training_never_shows_an_unseen_composition(world, clevr):
    unseen = unseen_of(world)
    assert len(unseen) == 8
    for name, scene in clevr.items():
        if not name.startswith("test/"):
            assert unseen.isdisjoint(composed(scene["objects"])), name
    test = [composed(s["objects"]) for name, s in clevr.items() if name.startswith("test/")]
    assert any(unseen & found for found in test)
    assert any(found - unseen for found in test)
    listed = load(world / "compositions.json")
    assert not unseen & {tuple(pair) for pair in listed["seen"]}
    assert len(listed["seen"]) == 32


FIRST = {"gray", "blue", "brown", "yellow"}  # CLEVR, section 4.7: cubes of A, cylinders of B
SECOND = {"red", "green", "purple", "cyan"}


def shown(world: Path, split: str) -> dict[str, set[str]]:
    """The colours of each shape in a split."""
    found: dict[str, set[str]] = defaultdict(set)
    for scene in load(world / f"clevr/scenes_{split}.json")["scenes"]:
        for color, shape in composed(scene["objects"]):
            found[shape].add(color)
    return found


def test_a_world_of_condition_a(tmp_path):
    counts = {"train": 60, "val": 30, "test": 60, "cogent": 60, "ar4t_train": 8, "foils": 3}
    sizes = {"image_size": 32, "min_objects": 3, "max_objects": 4, "seed": 7}
    out = rendered(tmp_path / "world", NOTHING | counts | sizes, unseen="A")
    for split in ("train", "val", "valA"):
        colors = shown(out, split)
        assert colors["cube"] <= FIRST, split
        assert colors["cylinder"] <= SECOND, split
    colors = shown(out, "valB")
    assert colors["cube"] == SECOND
    assert colors["cylinder"] == FIRST
    for split in ("train", "valA", "valB"):
        for shape in ("sphere", "cone", "torus"):
            assert shown(out, split)[shape] & FIRST
            assert shown(out, split)[shape] & SECOND
    test = shown(out, "test")  # all compositions
    assert test["cube"] & FIRST
    assert test["cube"] & SECOND
    # Texts of the training side, true and false ones: no composition of B.
    texts = [cell for row in rows_of(out / "foils/train.csv") for cell in row.values()]
    texts += [row["caption"] for row in rows_of(out / "ar4t/PUG_AR_train.csv")]
    pairs = [f"{c} cube" for c in SECOND] + [f"{c} cylinder" for c in FIRST]
    forbidden = re.compile(rf"\b({'|'.join(pairs)})\b")
    assert len(texts) > 100
    assert not [text for text in texts if forbidden.search(text)]
    # Every split holds the number of scenes that was asked for, in images of its own.
    for split, count in (("train", 60), ("valA", 60), ("valB", 60)):
        assert len(list((out / "images" / split).iterdir())) == count
    first, other = (load(out / f"clevr/scenes_{s}.json")["scenes"] for s in ("train", "valA"))
    assert [s["objects"] for s in first] != [s["objects"] for s in other]


def test_a_condition_has_no_unseen_swaps(tmp_path, capsys):
    with refused("change `unseen`, or add colors or shapes"):
        rendered(tmp_path / "world", SMALL, unseen="A")
    assert main(["build", "scenes", "--unseen", "C", "--out", str(tmp_path / "w")]) == 2
    assert "typing.Literal['A', 'B']" in capsys.readouterr().err


def test_the_manifest_counts_images_and_records_no_processes_or_idle_options(world):
    manifest = load(world / "manifest.json")
    assert manifest["counts"]["images: train"] == 12
    assert manifest["counts"]["images: cola_unseen"] == 12
    assert "processes" not in manifest["arguments"]
    assert json.loads(json.dumps(ScenesBuilder(**SMALL).spec()))["init_args"]["train"] == 12
    assert not {"classes", "eqben_train"} & ScenesBuilder().spec()["init_args"].keys()
    assert ScenesBuilder(eqben_train=3).spec()["init_args"]["eqben_train"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 0, "val": 0, "test": 0}, "expected scenes in train, val or test"),
        ({"max_objects": 99}, "min_objects, max_objects: expected"),
        ({"unseen": [[["red"], ["cube", "cone"]]]}, "expected unseen rectangles .* got"),
        ({"unseen": [[["red", "bleu"], ["cube", "cone"]]]}, "expected unseen rectangles .* got"),
        ({"unseen": [[[], []]]}, "expected unseen rectangles .* got"),
    ],
)
def test_wrong_arguments_fail_at_once(arguments, message):
    with refused(message):
        ScenesBuilder(**{**SMALL, **arguments})


ENGINE = {"loc": "(left|right|front|behind)", "cnt": "there (is|are)", "attr": "a photo of"}


def test_engine_pairs_train_on_seen_compositions_and_build_pairs_of_images(tmp_path):
    world = rendered(tmp_path / "world", SMALL | NOTHING, train=2, eqben_train=12)
    rows = rows_of(world / "eqben/train.csv")
    assert len(rows) == 36
    unseen = {f"{color} {shape}" for color, shape in unseen_of(world)}
    for kind, words in ENGINE.items():
        part = [row for row in rows if f"eqben_{kind}_" in row["image"]]
        assert len(part) == 12
        for row in part:
            texts = row["caption"], row["negative"]
            assert texts[0] != texts[1]
            assert all(re.search(words, text) for text in texts)
            assert not [words for words in unseen if any(words in text for text in texts)]
            files = [world / "images" / row[name] for name in ("image", "negative_image")]
            assert files[0].read_bytes() != files[1].read_bytes()
    made = groups(TableBuilder(world / "eqben/train.csv", world / "images"))
    assert [group.truth.int().tolist() for group in made] == [[[1, 0], [0, 1]]] * 36


PLAIN = {"materials": ["metal"], "sizes": ["small"], "textures": ["plain"]}


@pytest.mark.parametrize(
    "words", [{"colors": ["red"]}, {"colors": ["red"], **PLAIN}, {"colors": ["gray", "red"]}]
)
def test_a_world_of_few_words_has_sentences(words, tmp_path):
    tables = {"train": 6, "foils": 4, "grammar": 5, "graded": 1, "max_objects": 3}
    unseen = "A" if len(words["colors"]) > 1 else []
    world = rendered(tmp_path / "world", SMALL | NOTHING | tables | words, unseen=unseen)
    for table in ("foils", "grammar"):
        assert len(rows_of(world / table / "train.csv")) > 6


def test_scenes_as_clevrs_are_those_of_its_splits_alone():
    splits = ScenesBuilder(**SMALL, clevr=True)._splits()
    assert splits["val"].series.spec == splits["val"].series.spec.as_clevr()
    like_clevrs = {name for name, split in splits.items() if split.series.spec.clevr}
    assert like_clevrs == {"train", "val", "test", "valA", "valB"}


def test_one_unread_colour_alone_has_no_items_that_exchange_it():
    builder = ScenesBuilder(**SMALL | {"unread_colors": ["gray"]})
    assert {"cola_seen", "cola_unseen"} == {n for n in builder._splits() if n.startswith("cola")}


def test_folders_of_classes_show_seen_compositions(tmp_path):
    builder = ScenesBuilder(**SMALL | NOTHING | {"train": 1, "classes": 3})
    series = builder._splits()["classes"].series
    shapes = builder.world.shapes
    for index, shown in enumerate(series.render(0, 3 * len(shapes), builder.canvas)):
        (thing,) = shown.scene.objects
        assert thing.shape == shapes[index % len(shapes)]
        assert (thing.color, thing.shape) not in builder.unseen
    builder.build(tmp_path / "w", progress=False)
    folders = sorted((tmp_path / "w/images/classes").iterdir())
    assert [folder.name for folder in folders] == sorted(shapes)
    assert {len(list(folder.glob("*.png"))) for folder in folders} == {3}
