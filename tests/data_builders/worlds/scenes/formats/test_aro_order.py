from collections import Counter

import pytest

from tests.data_builders.conftest import SUITE, load
from tests.data_builders.worlds.scenes.truth import KIND, SHAPES, NoSentenceError, holds


@pytest.fixture(scope="module")
def items(suite):
    rows = load(suite / "aro/coco_karpathy_test.json")
    shuffles = load(suite / "aro/coco_karpathy_test_shuffles.json")["shuffles"]
    assert len(rows) == len(shuffles) == SUITE["benchmarks"]
    both = zip(rows, shuffles, strict=True)
    return [(row["image"], *row["caption"], texts) for row, texts in both]


def is_true(scene, text):
    try:
        return holds(scene, text)
    except NoSentenceError:
        return False


def test_only_the_caption_is_true(items, graphs):
    for image, caption, shuffles in items:
        scene = graphs["scenes"][image.removeprefix("suite/")]
        assert holds(scene, caption)
        assert len(shuffles) == 4
        for text in shuffles:
            assert Counter(text.split()) == Counter(caption.split())
            assert not is_true(scene, text), (caption, text)


def test_each_shuffle_moves_what_it_should(items):
    for _, caption, (nouns, others, within, order) in items:
        words = caption.split()
        content = [k for k, word in enumerate(words) if word in SHAPES or word in KIND]
        moved = [
            {k for k, (a, b) in enumerate(zip(words, text.split(), strict=True)) if a != b}
            for text in (nouns, others)
        ]
        assert moved[0] <= set(content)
        assert moved[1].isdisjoint(content)
        trigrams = [words[k : k + 3] for k in range(0, len(words), 3)]
        parts = [within.split()[k : k + 3] for k in range(0, len(words), 3)]
        assert [sorted(a) for a in trigrams] == [sorted(b) for b in parts]
        assert all(" ".join(part) in order for part in trigrams)
