import json
import random

import pytest

from tests.refusals import refused
from vlmtune.benchmarks import aro_shuffles
from vlmtune.language.tagger import LexiconTagger
from vlmtune.language.words import words

NOUNS = {"man", "horse", "beach", "dog", "table", "cats"}
ADJECTIVES = {"brown", "old", "wooden", "sunny"}
CAPTION = "The old man on the beach rides a brown horse, and his dog doesn't bark."


class Known:
    """Tags by a list of words."""

    def tag(self, words):
        kinds = {**dict.fromkeys(NOUNS, "NOUN"), **dict.fromkeys(ADJECTIVES, "ADJ"), "dog": "PROPN"}
        return [kinds.get(word, "DET") for word in words]


def write(folder, rows, seed=0):
    path, shuffles = folder / "captions.json", folder / "shuffles.json"
    path.write_text(json.dumps(rows))
    aro_shuffles.write_shuffles(path, shuffles, Known(), seed)
    return path, shuffles


def test_normalised_as_published():
    published = 'A man, riding a "HORSE"; on the beach - (sunny).  '
    assert aro_shuffles.normalised(published) == "a man, riding a horse on the beach - sunny"
    assert aro_shuffles.normalised(" ".join(["word"] * 40)) == " ".join(["word"] * 30)


@pytest.mark.parametrize("seed", range(20))
def test_what_each_shuffle_moves(seed):
    original = words(CAPTION)
    nouns, others, within, trigrams = (
        text.split(" ") for text in aro_shuffles.perturb(CAPTION, Known(), seed)
    )
    for shuffled in (nouns, others, within, trigrams):
        assert sorted(shuffled) == sorted(original)
    for word, old, new in zip(original, nouns, others, strict=True):
        content = word in NOUNS | ADJECTIVES
        assert content or old == word
        assert not content or new == word
        assert (word in NOUNS) == (old in NOUNS)
        assert (word in ADJECTIVES) == (old in ADJECTIVES)
    parts = [original[i : i + 3] for i in range(0, len(original), 3)]
    for i, part in enumerate(parts):
        assert sorted(within[3 * i : 3 * i + 3]) == sorted(part)
    position = 0
    left = list(parts)
    while position < len(trigrams):
        part = next(p for p in left if trigrams[position : position + len(p)] == p)
        left.remove(part)
        position += len(part)
    assert not left


def test_every_order_is_drawn_by_the_seed_alone():
    found = {aro_shuffles.perturb("man dog horse", Known(), seed)[0] for seed in range(60)}
    assert len(found) == 6
    trigrams = {aro_shuffles.perturb("a b c d e f", Known(), seed)[3] for seed in range(20)}
    assert trigrams == {"a b c d e f", "d e f a b c"}
    random.seed(0)
    first = aro_shuffles.perturb(CAPTION, Known(), 1)
    random.seed(7)
    aro_shuffles.perturb("a man", Known(), 1)
    assert aro_shuffles.perturb(CAPTION, Known(), 1) == first
    assert aro_shuffles.perturb(CAPTION, Known(), 2) != first


def test_the_tagger_and_the_seed_are_recorded(tmp_path):
    path, shuffles = write(tmp_path, [{"image": "0.jpg", "caption": ["a man", "é"]}], seed=3)
    content = json.loads(shuffles.read_text())
    assert (content["tagger"], content["seed"]) == ("Known", 3)
    aro_shuffles.write_shuffles(path, tmp_path / "other.json", LexiconTagger(), 3)
    content = json.loads((tmp_path / "other.json").read_text())
    assert content["tagger"]["class_path"] == "vlmtune.language.tagger.LexiconTagger"


def test_shuffles_of_other_captions_or_damaged_ones_raise(tmp_path):
    path, shuffles = write(tmp_path, [{"image": "0.jpg", "caption": ["a man on a horse"]}])
    content = json.loads(shuffles.read_text())
    changed = {**content, "shuffles": [[*content["shuffles"][0][:3], "another"]]}
    fewer = {**content, "shuffles": [content["shuffles"][0][:3]]}
    for wrong, message in (
        (changed, "damaged"),
        (fewer, "damaged"),
        ({**content, "shuffles": None}, "got None at shuffles"),
        ({**content, "version": 2}, "got 2 at version"),
        ([], "at the top"),
    ):
        shuffles.write_text(json.dumps(wrong))
        with refused(message):
            aro_shuffles.read_shuffles(shuffles, path, 1)
    shuffles.write_text(json.dumps(content))
    path.write_text(path.read_text().replace("man", "dog"))
    with refused("other captions"):
        aro_shuffles.read_shuffles(shuffles, path, 1)
    with refused("vlmtune shuffles"):
        aro_shuffles.read_shuffles(tmp_path / "none.json", path, 1)
