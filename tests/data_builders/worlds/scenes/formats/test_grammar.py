"""Sentences of the grammar are true and false, as a reader of their words alone sees them."""

import re

import pytest

from data_builders.worlds.scenes.captions import vocabulary
from data_builders.worlds.scenes.formats.grammar import LONGEST
from tests.data_builders.conftest import SMALL, rendered, rows_of, scenes_of, unseen_of
from tests.data_builders.worlds.scenes.truth import UNTAUGHT, NoSentenceError, holds
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice

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
    options = SMALL | {"train": 80, "grammar": 9, "stack": 0.0}
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
