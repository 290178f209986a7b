"""The table of what carries beyond training: true, false, new to training, and balanced."""

import json
import re
from collections import Counter

import pytest

from data_builders.worlds.scenes import transfer
from data_builders.worlds.scenes.captions import vocabulary
from data_builders.worlds.scenes.formats.grammar import LONGEST
from data_builders.worlds.scenes.further_forms import FURTHER
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import Scene, SceneObject
from data_builders.worlds.scenes.transfer import TransferBuilder
from data_builders.worlds.scenes.transfer_forms import WORDINGS
from tests.data_builders.conftest import hashes, rendered, rows_of, scenes_of, training_texts
from tests.data_builders.worlds.scenes.formats.test_grammar import untaught
from tests.data_builders.worlds.scenes.test_held_out import WORLD
from tests.data_builders.worlds.scenes.truth import NUMBERS, UNTAUGHT, fits, holds
from vlmtune.benchmarks.transfer import Transfer

OPTIONS = {"items": 12, "image_size": 32, "seed": 3, "processes": 1}
UNREAD = {"purple", "brown", "small", "large", "striped", "checkered"}


def is_true(scene, sentence, group):
    """Whether a sentence is true of the scene, from its words."""
    dimension, part = group.split("/")
    if dimension == "wordings":
        return fits(scene, sentence, part)
    return holds(scene, sentence.replace("an image of", "a photo of"))


def false_of(row):
    text = row["negative"]
    return json.loads(text) if text.startswith("[") else [text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transfer") / "transfer"
    TransferBuilder(**OPTIONS).build(folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    return rows_of(folder / "transfer.csv")


@pytest.fixture(scope="module")
def further(tmp_path_factory):
    folder = tmp_path_factory.mktemp("further") / "further"
    TransferBuilder(**OPTIONS | {"further": True}).build(folder, progress=False)
    return folder


@pytest.mark.parametrize("name", ["folder", "further"])
def test_true_captions_are_true_and_false_ones_false(name, request):
    folder = request.getfixturevalue(name)
    scenes = scenes_of(folder, "*.json")
    for row in rows_of(folder / "transfer.csv"):
        scene = scenes[row["image"].rpartition("/")[2]]
        assert is_true(scene, row["caption"], row["group"]), row
        assert not [text for text in false_of(row) if is_true(scene, text, row["group"])], row


def test_a_shorter_description_is_not_called_false():
    """The large purple cylinder is one, striped or not."""
    images = []
    for index, texture in enumerate(("striped", "plain", "plain")):
        shape = ("cylinder", "cylinder", "cube")[index]
        only = SceneObject(shape, "purple", "rubber", texture, "large", (0.0, 0.0, 0.7), 0.7)
        images.append(SceneImage(f"{index}.png", index, Scene((only,)), 32, (), ()))
    rows = list(transfer._single(images, WorldSpec(), 0))
    described = [row for row in rows if row.group.endswith("one of ten objects")]
    negatives = [row.negatives for row in described]
    assert sorted(map(len, negatives)) == [1, 2, 2]
    assert negatives[0] == ["a large purple cube"]


def test_each_dimension_has_its_parts_in_words_of_the_shipped_model(rows):
    parts = {}
    for row in rows:
        dimension, part = row["group"].split("/")
        parts.setdefault(dimension, Counter())[part] += 1
        for text in (row["caption"], *false_of(row)):
            assert set(text.split()) <= set(vocabulary())
            assert len(text.split()) <= LONGEST
    sizes = {"as trained": 3, "recombined words": 4, "counts": 3, "scenes": 14, "retained": 4}
    sizes["wordings"] = len(WORDINGS)
    assert parts.pop("unread words").keys() >= {"sizes", "textures", "colours: other shapes"}
    assert {dimension: len(of) for dimension, of in parts.items()} == sizes
    assert max(parts["wordings"].values()) == OPTIONS["items"]


def test_further_forms_are_in_words_of_the_shipped_model(further):
    parts = Counter()
    for row in rows_of(further / "transfer.csv"):
        parts[row["group"].removeprefix("wordings/")] += 1
        words = {*row["caption"].split(), *row["negative"].split()}
        assert words <= set(vocabulary()) - UNREAD
    assert parts == dict.fromkeys(FURTHER, OPTIONS["items"])


def test_words_of_each_dimension_are_those_it_is_about(rows):
    unseen = re.compile("(red|blue) (cube|cylinder|sphere)")
    for row in rows:
        dimension = row["group"].partition("/")[0]
        texts = [row["caption"], *false_of(row)]
        for text in texts:
            unread = UNREAD & set(text.split())
            if dimension == "unread words":
                assert len(unread) == 2, row
            elif dimension != "retained":
                assert not unread, row
            if dimension == "recombined words":
                assert len(unseen.findall(text)) == 2, row
            elif dimension in ("as trained", "scenes"):
                assert not unseen.search(text), row


def test_no_wording_is_in_a_training_text(tmp_path):
    options = WORLD | {"train": 60, "grammar": 9, "held_out": 0}
    world = rendered(tmp_path / "world", options, processes=1)
    texts = training_texts(world, single=2, sentences=True)
    assert len(texts) > 1400
    assert UNTAUGHT.keys() == WORDINGS.keys() | FURTHER.keys()
    for text in texts:
        assert not untaught(text), text


def test_preferring_a_number_gains_nothing(rows):
    pairs = Counter()
    for row in rows:
        if row["group"] in ("counts/to three", "counts/to eight"):
            said = [
                re.findall("|".join(NUMBERS), text) for text in (row["caption"], *false_of(row))
            ]
            (true,), (false,) = said
            pairs[NUMBERS.index(true), NUMBERS.index(false)] += 1
    assert len(pairs) == 14
    assert max(pairs.values()) - min(pairs.values()) <= 1


def test_equal_seeds_give_equal_bytes(folder, tmp_path):
    TransferBuilder(**OPTIONS).build(tmp_path / "again", progress=False)
    assert hashes(tmp_path / "again") == hashes(folder)


def test_unread_shapes_and_materials_are_parts_where_training_lacks_them(tmp_path):
    options = {"unread_shapes": ["torus"], "unread_materials": ["metal"], "unread_colors": []}
    TransferBuilder(**OPTIONS | options | {"items": 4}).build(tmp_path / "words", progress=False)
    for row in rows_of(tmp_path / "words/transfer.csv"):
        dimension, part = row["group"].split("/")
        words = set(row["caption"].split())
        if dimension == "unread words":
            assert part in ("sizes", "textures", "materials", "torus")
            assert part != "torus" or "torus" in words
            assert part != "materials" or words >= {"metal", "rubber"}
        elif dimension not in ("retained", "counts"):
            assert not words & {"torus", "metal"}, row


def test_the_benchmark_knows_the_chance_of_each_dimension(folder):
    benchmark = Transfer(str(folder / "transfer.csv"), str(folder / "images"))
    result = benchmark.run(lambda images, texts, pairs: pairs[:, 1] * 0.0)
    metrics = result.metrics
    assert metrics["accuracy/wordings"].chance == metrics["accuracy/counts"].chance == 0.5
    chances = {"size": 0.5, "texture": 0.5, "shape": 0.2, "one of ten objects": 0.1}
    total = n = 0
    for part, chance in chances.items():
        metric = metrics[f"accuracy/retained/{part}"]
        assert metric.chance == pytest.approx(chance)
        total += chance * metric.n
        n += metric.n
    retained = metrics["accuracy/retained"]
    assert (retained.n, retained.chance) == (n, pytest.approx(total / n))
    overall = metrics[result.primary]
    assert overall.chance == pytest.approx((6 * 0.5 + total / n) / 7)
    # A tie is never right.
    assert overall.value == 0.0
