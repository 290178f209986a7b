"""Sentences of the grammar are true and false, as a reader of their words alone sees them."""

import random
import re
from collections import Counter

import pytest

from data_builders.worlds.scenes.captions import vocabulary
from data_builders.worlds.scenes.formats import grammar
from data_builders.worlds.scenes.formats.context import SceneContext
from data_builders.worlds.scenes.formats.grammar import LONGEST
from data_builders.worlds.scenes.sampling import WorldSpec, sample_scene
from tests.data_builders.conftest import SMALL, rendered, rows_of, scenes_of, unseen_of
from tests.data_builders.worlds.scenes.truth import UNTAUGHT, NoSentenceError, holds
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice

COLOURED = f"(?:{'|'.join(WorldSpec().colors)}) (?:{'|'.join(WorldSpec().shapes)})"
FRAMES = (
    r"(in the picture |a photo of |a picture of |this is a picture of )?(.*?)( in the picture)?"
)


def is_true(scene, sentence):
    """Whether the sentence is true, as a whole or without its frame."""
    framed = re.fullmatch(FRAMES, sentence)
    assert framed is not None
    try:
        return holds(scene, sentence)
    except NoSentenceError:
        return holds(scene, framed[2])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    options = SMALL | {"train": 80, "grammar": 9, "synonyms": True, "stack": 0.0}
    return rendered(tmp_path_factory.mktemp("grammar") / "world", options, processes=1)


@pytest.fixture(scope="module")
def rows(world):
    return rows_of(world / "grammar/train.csv")


def test_sentences_are_true_and_their_counterparts_false_in_a_table(world, rows):
    scenes = scenes_of(world, "scenes_train.json")
    assert len(rows) > 6 * len(scenes)
    for row in rows:
        scene = scenes[row["image"].rpartition("/")[2]]
        assert is_true(scene, row["caption"]), row
        assert not is_true(scene, row["negative"]), row
    # An image has at most so many rows.
    images = [row["image"] for row in rows]
    assert max(images.count(image) for image in set(images)) == 9
    table = TableMultipleChoice(str(world / "grammar/train.csv"), str(world / "images"))
    assert len(table.items.images) == len(set(images))


def test_words_of_the_same_meaning_take_turns(rows):
    captions = " ".join(row["caption"] for row in rows)
    for form in ("the {} object", "the {} thing"):
        assert re.search(form.format(r"\w+"), captions)
    for form in ("in the picture is", "in the scene is", "no picture of"):
        assert form in captions
    assert "scene of" not in captions


def written(write, spec, count):
    """Sentences of one writer about so many scenes, each with its scene."""
    out = []
    for seed in range(count):
        scene = sample_scene(spec, random.Random(seed))
        sentences = write(SceneContext(scene, spec, random.Random(f"{seed}:written")))
        if sentences is not None:
            out.append((scene, *sentences))
    return out


def test_words_do_not_tell_the_number_of_objects():
    found = written(grammar._count, WorldSpec(min_objects=2, max_objects=4), 4000)
    assert len(found) > 1000
    true = Counter(sentence for _, sentence, _ in found)
    false = Counter(sentence for _, _, sentence in found)
    # The best guess of whoever knows the words alone.
    right = sum(true[one] > true[other] for _, one, other in found)
    assert right < 0.6 * len(found)
    for sentence in true | false:
        assert abs(true[sentence] - false[sentence]) < 5 * (true[sentence] ** 0.5 + 2)


def test_what_is_denied_of_two_objects_names_objects_that_are_there():
    found = written(grammar._relation, WorldSpec(min_objects=2, max_objects=3), 1500)
    denied = [(scene, true) for scene, true, _ in found if " not " in f" {true} "]
    assert len(denied) > 100
    for scene, sentence in denied:
        there = {f"{obj.color} {obj.shape}" for obj in scene.objects}
        assert set(re.findall(COLOURED, sentence)) <= there, sentence


def test_of_two_equal_descriptions_no_second_relation_is_false():
    """With few compositions the same one may come twice."""
    colors, shapes = ("red", "blue"), ("cube", "sphere")
    spec = WorldSpec(min_objects=4, max_objects=5, clevr=True, colors=colors, shapes=shapes)
    for scene, *sentences in written(grammar._two_relations, spec, 300):
        descriptions = Counter(f"{obj.color} {obj.shape}" for obj in scene.objects)
        for named in re.findall(COLOURED, " ".join(sentences)):
            assert descriptions[named] == 1


def untaught(text):
    """The forms of a sentence that only tests have."""
    framed = re.fullmatch(FRAMES, text)
    assert framed is not None
    return [name for name, (form, _) in UNTAUGHT.items() if re.fullmatch(form, framed[2])]


def test_sentences_fit_the_shipped_model_and_state_no_unseen_composition(world, rows):
    unseen = {" ".join(composition) for composition in unseen_of(world)}
    for row in rows:
        for text in (row["caption"], row["negative"]):
            words = text.split()
            assert len(words) <= LONGEST
            assert set(words) <= set(vocabulary())
            assert not [pair for pair in unseen if pair in text], text
