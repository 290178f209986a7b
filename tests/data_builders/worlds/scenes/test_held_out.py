"""What training lacks: its texts never state it, and the tests' sentences are true and false."""

import json
import re

import pytest

from data_builders.corpora.annotations import ClevrScenes
from data_builders.corpora.cola import ColaBuilder
from data_builders.worlds.scenes.captions import vocabulary
from tests.data_builders.conftest import SMALL, groups, load, rendered, rows_of, unseen_of
from tests.data_builders.worlds.scenes.truth import NOUN, NUMBERS, PHRASE, holds, means, some
from vlmtune.benchmarks.table_abilities import TableAbilities
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice
from vlmtune.benchmarks.table_retrieval import TableRetrieval

UNREAD = {"purple", "brown"}
SIDES = ("to the left of", "to the right of", "in front of", "behind")
OPPOSITES = (SIDES[:2], SIDES[1::-1], SIDES[2:], SIDES[:1:-1])
WORLD = SMALL | {"foils": 3, "long_foils": 1, "placements": 2, "unread_colors": sorted(UNREAD)}
WORLD |= {"held_out": 40, "stack": 0.0, "max_objects": 3, "textures": ["plain"]}
WORLD |= {"sizes": ["large"], "unseen": [[["red", "blue"], ["cube", "cylinder", "sphere"]]]}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("held_out") / "world", WORLD, processes=1)


@pytest.fixture(scope="module")
def scenes(held_out):
    listed = {}
    for name in ("scenes", "triples", "crowded", "objects"):
        content = load(held_out / f"clevr/scenes_held_out_{name}.json")["scenes"]
        for scene in content:
            listed[scene["image_filename"]] = scene
    return listed


@pytest.fixture(scope="module")
def training_texts(held_out):
    """Every text that a training over this world may read."""
    texts = []
    for image in load(held_out / "karpathy/dataset_scenes.json")["images"]:
        if image["split"] == "train":
            texts += [sentence["raw"] for sentence in image["sentences"]]
    for row in rows_of(held_out / "foils/train.csv"):
        texts += [row["caption"], row["negative"]]
    for row in rows_of(held_out / "ar4t/PUG_AR_train.csv"):
        texts += [value for name, value in row.items() if "caption" in name.lower()]
    scenes = ClevrScenes(held_out / "clevr/scenes_train.json", held_out / "images/train")
    exclude = held_out / "compositions.json"
    queries = ColaBuilder(scenes, exclude=exclude, single=2, misbound=2, half_wrong=2)
    for group in groups(queries):
        texts += group.texts
    return texts


def test_training_neither_shows_nor_names_unread_colours(held_out, training_texts):
    for split in ("train", "val"):
        for scene in load(held_out / f"clevr/scenes_{split}.json")["scenes"]:
            assert UNREAD.isdisjoint(obj["color"] for obj in scene["objects"])
    assert len(training_texts) > 200
    assert not [text for text in training_texts if UNREAD & set(re.findall(r"\w+", text))]
    unread = load(held_out / "cola/multi_unread.json")
    for _, first, _, second in unread:
        assert set(first.split()) & UNREAD == set(second.split()) & UNREAD == UNREAD
    assert len(unseen_of(held_out)) == 2 * 3 + 2 * 5


def test_no_training_text_has_a_held_out_form(training_texts):
    forms = ("^(to the|in front|behind)", "the thing", "with a", "is not", " is [a-z]+ and the ")
    for form in forms:
        assert not [text for text in training_texts if re.search(form, text)], form


def fits(scene, sentence, group):
    """Whether a sentence is true, from its words."""
    if group in ("inverted", "the thing"):
        words = sentence.removeprefix("the thing ")
        phrase, second, first = matched(f"{PHRASE} {NOUN} is {NOUN}", words)
        return some(scene, first, phrase, second)
    if group == "reference first":
        second, first, place = matched(f"{NOUN} with {NOUN} (.*)", sentence)
        phrase = place if place == "behind" else f"{place} of"
        return some(scene, first, phrase, second)
    if group == "not related":
        first, phrase, second = matched(f"{NOUN} is not {PHRASE} {NOUN}", sentence)
        return not some(scene, first, phrase, second)
    if group.endswith("of two relations"):
        pattern = f"{NOUN} {PHRASE} {NOUN} and {PHRASE} {NOUN}"
        subject, phrase, first, other, second = matched(pattern, sentence)
        both = some(scene, subject, phrase, first), some(scene, subject, other, second)
        return all(both)
    if group == "predicate":
        a, x, b, y = matched(r"the (\w+) is (\w+) and the (\w+) is (\w+)", sentence)
        return bool(means(scene, f"{x} {a}") and means(scene, f"{y} {b}"))
    if group == "absent":
        (shape,) = matched(r"there is no (\w+)", sentence)
        return not means(scene, shape)
    shape, color = matched(r"the (\w+) is not (\w+)", sentence)
    return not means(scene, f"{color} {shape}")


def matched(pattern, sentence):
    found = re.fullmatch(pattern, sentence)
    assert found, sentence
    return found.groups()


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


def test_structures_are_true_and_false(held_out, scenes):
    rows = rows_of(held_out / "held_out/structures.csv")
    assert {row["group"] for row in rows} == {"three objects", "between", "counted"}
    for row in rows:
        scene = scenes[row["image"].rpartition("/")[2]]
        negatives = [row["negative"]]
        if row["group"] == "three objects":
            negatives = json.loads(row["negative"])
            assert len(negatives) <= 5
        assert stands(scene, row["caption"]), row
        assert not any(stands(scene, text) for text in negatives), row


def stands(scene, sentence):
    """Whether a sentence of `structures.csv` is true, from its words."""
    if " between " in sentence:
        middle, first, second = matched(f"{NOUN} between {NOUN} and {NOUN}", sentence)
        for phrase, opposite in OPPOSITES:
            if some(scene, middle, phrase, first) and some(scene, middle, opposite, second):
                return True
        return False
    if sentence.startswith("in the picture"):
        (word,) = matched(r"in the picture (?:is|are) (\w+) objects?", sentence)
        return len(scene["objects"]) == NUMBERS.index(word)
    nouns = matched(f"{NOUN} and {NOUN} and {NOUN}", sentence)
    return all(means(scene, noun) for noun in nouns)


def test_no_number_is_right_more_often_than_another(held_out):
    rows = rows_of(held_out / "held_out/structures.csv")
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
