import math
import random
from collections import Counter

import pytest

from tests.refusals import refused
from vlmtune.language.ngram import END, START, UNKNOWN, NGram

CAPTIONS = [
    "a dog on a couch",
    "a cat on a couch",
    "a dog chases a cat",
    "two dogs run on the grass",
    "A man rides a horse, on the beach.",
    "the dog",
    "a man and a dog on the beach",
]


def naive(captions, order, word, history):
    """Interpolated Kneser-Ney by the definition, from the text, one number at a time."""
    texts = (caption.replace(",", " ,").replace(".", " .").lower() for caption in captions)
    lines = [[START, *text.split(), END] for text in texts]
    vocabulary = {w for line in lines for w in line} - {START} | {UNKNOWN}

    def seen(length):
        """All n-grams of a length with their counts."""
        grams = Counter(
            tuple(line[i : i + length])
            for line in lines
            for i in range(len(line) - length + 1)
            if i + length > 1
        )
        grams.pop((START,), None)
        if length == order:
            return grams
        before = Counter(
            gram[1:]
            for gram in {
                tuple(line[i : i + length + 1]) for line in lines for i in range(len(line) - length)
            }
        )
        return Counter({g: grams[g] if g[0] == START else before[g] for g in grams})

    def p(word, history):
        length = len(history) + 1
        lower = 1 / len(vocabulary) if length == 1 else p(word, history[1:])
        counts = seen(length)
        once, twice = (sum(n == r for n in counts.values()) for r in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.5
        after = {g[-1]: n for g, n in counts.items() if g[:-1] == tuple(history)}
        if not after:
            return lower
        total = sum(after.values())
        discounted = max(after.get(word, 0) - discount, 0) / total
        return discounted + discount * len(after) / total * lower

    return p(word, history)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_against_the_definition(order):
    model = NGram(order).fit(CAPTIONS)
    rng = random.Random(0)
    words = sorted(model.vocabulary)
    for _ in range(40):
        history = rng.choices(words, k=rng.randint(0, order - 1))
        history = [w for w in history if w != END]
        if len(history) < order - 1 and rng.random() < 0.5:
            history = [START, *history]
        word = rng.choice(words)
        want = naive(CAPTIONS, order, word, history)
        assert model.probability(word, history) == pytest.approx(want)


def test_log_probability_is_the_sum_over_tokens_of_the_last_captions():
    model = NGram(3).fit(CAPTIONS)
    tokens = model.tokens("A dog, here")
    assert [word for word, _ in tokens] == ["a", "dog", ",", "here", END]
    assert model.log_probability("A dog, here") == pytest.approx(sum(v for _, v in tokens))
    mean = model.log_probability("A dog, here", per_token=True)
    assert mean == pytest.approx(sum(v for _, v in tokens) / 5)
    assert model.log_probability("") == pytest.approx(math.log(model.probability(END, [START])))
    assert model.log_probability("a zebra") == model.log_probability("a giraffe")
    model = NGram(2).fit(["x y"]).fit(["a b"])
    assert "x" not in model.vocabulary
    assert model.log_probability("a b") == NGram(2).fit(["a b"]).log_probability("a b")


def test_wrong_use_is_one_line():
    with refused("got none"):
        NGram().fit([])
