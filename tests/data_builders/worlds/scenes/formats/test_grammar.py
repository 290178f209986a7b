"""Sentences of the grammar are true and false, as a reader of their words alone sees them."""

import re

import pytest

from data_builders.worlds.scenes.captions import vocabulary
from data_builders.worlds.scenes.formats.grammar import LONGEST
from tests.data_builders.conftest import SMALL, rendered, rows_of, scenes_of, unseen_of
from tests.data_builders.worlds.scenes.truth import (
    COUNTED,
    NUMBERS,
    SIDE,
    UNTAUGHT,
    distinct,
    means,
    number,
    some,
    whole,
)
from tests.data_builders.worlds.scenes.truth import NOUN as N
from tests.data_builders.worlds.scenes.truth import PHRASE as P
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice

NOT = "(not )?"
FRAMES = (
    r"(in the picture |a photo of |a picture of |this is a picture of )?(.*?)( in the picture)?"
)


RULES = (
    (f"(?:there is )?{N} (?:is )?{NOT}{P} {N}",
     lambda s, a, no, p, b: some(s, a, p, b) != bool(no)),
    (f"{NOT}{P} {N} there is {N}", lambda s, no, p, b, a: some(s, a, p, b) != bool(no)),
    (f"{N} with {N} {NOT}{P} this", lambda s, b, a, no, p: some(s, a, p, b) != bool(no)),
    (f"{N} and {NOT}{P} this {N}", lambda s, a, no, p, b: some(s, b, p, a) != bool(no)),
    (f"there is {N} and {NOT}{P} this is {N}",
     lambda s, b, no, p, a: some(s, a, p, b) != bool(no)),
    (f"there is {N} and {N} is {NOT}{P} this",
     lambda s, b, a, no, p: some(s, a, p, b) != bool(no)),
    (f"{N} and {N} with {N} {NOT}{P} {N}",
     lambda s, a, b, c, no, p, d: (some(s, c, p, d) != bool(no)) and (a, b) == (c, d)),
    (f"with {N} {NOT}{SIDE} there is {N}",
     lambda s, a, no, side, b: some(s, a, whole(side), b) != bool(no)),
    (f"{N} is {NOT}the object {P} {N}", lambda s, a, no, p, b: some(s, a, p, b) != bool(no)),
    (f"{N} and this is not {P} {N}", lambda s, a, p, b: not some(s, a, p, b)),
    (f"(?:there is )?no {N} {P} {N}", lambda s, a, p, b: not some(s, a, p, b)),
    (f"{P} {N} there is no {N}", lambda s, p, b, a: not some(s, a, p, b)),
    (f"{N} with(?: no|out) {N} {P} this", lambda s, b, a, p: not some(s, a, p, b)),
    # Two relations.
    (f"{N} (?:is )?{P} {N} and {N} (?:is )?{P} {N}",
     lambda s, a, p, b, c, q, d: some(s, a, p, b) and some(s, c, q, d)),
    (f"{N} and {N} and {N} {P} {N} and {P} {N}",
     lambda s, b, c, a, p, d, q, e: some(s, a, p, d) and some(s, a, q, e) and (b, c) == (d, e)),
    (f"{P} {N} and {P} {N} there is {N}",
     lambda s, p, b, q, c, a: some(s, a, p, b) and some(s, a, q, c)),
    (f"{N} with {N} {P} this and {N} {P} this",
     lambda s, a, b, p, c, q: some(s, b, p, a) and some(s, c, q, a)),
    (f"there is {N} {P} {N} and this is {P} {N}",
     lambda s, a, p, b, q, c: some(s, a, p, b) and some(s, a, q, c)),
    (f"{P} {N} there is {N} and {P} {N} there is {N}",
     lambda s, p, b, a, q, c, d: some(s, a, p, b) and some(s, d, q, c)),
    # Colours of one, two and three objects.
    (f"(?:there is )?{N} (?:and|with|beside) {N}", distinct),
    (r"a (\w+) and this is (\w+) and a (\w+) and this is (\w+)",
     lambda s, a, x, b, y: distinct(s, f"{x} {a}", f"{y} {b}")),
    (rf"a (\w+) beside {N} is (\w+)", lambda s, a, b, x: distinct(s, f"{x} {a}", b)),
    (rf"a (\w+) textured with (\w+) and {N}", lambda s, a, x, b: distinct(s, f"{x} {a}", b)),
    (rf"{N} and the (\w+) is (\w+)", lambda s, a, b, x: distinct(s, a, f"{x} {b}")),
    (rf"a (\w+) object and this is a (\w+) and {N}",
     lambda s, x, a, b: distinct(s, f"{x} {a}", b)),
    (rf"(?:there is )?{N} (?:and this is|in the picture is|textured with) {NOT}(\w+)",
     lambda s, a, no, x: bool(means(s, f"{x} {a}")) != bool(no)),
    (f"(?:there is )?{N} (?:and|with) {N} and {N}",
     lambda s, a, b, c: distinct(s, a, b) and bool(means(s, c))),
    # Presence and number.
    (f"(?:there is )?(?:no|not) {N}(?: is)?", lambda s, a: not means(s, a)),
    (f"(?:a scene|this is a picture) without {N}", lambda s, a: not means(s, a)),
    (f"(?:there is )?{N} and no {N}", lambda s, b, a: bool(means(s, b)) and not means(s, a)),
    (f"(?:there is |a scene with )?{N}(?: is)?", lambda s, a: bool(means(s, a))),
    (rf"there (?:is|are) ({COUNTED}) (\w+)", lambda s, n, a: number(s, a) == NUMBERS.index(n)),
)  # fmt: skip


def holds(scene, sentence):
    """Whether the sentence is true, by the first rule that reads it."""
    framed = re.fullmatch(FRAMES, sentence)
    assert framed is not None
    for words in (sentence, framed[2]):
        for pattern, rule in RULES:
            if matched := re.fullmatch(pattern, words):
                return rule(scene, *matched.groups())
    raise AssertionError(f"no rule reads {sentence!r}")


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
        assert holds(scene, row["caption"]), row
        assert not holds(scene, row["negative"]), row
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
