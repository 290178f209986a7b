import pickle

import pytest
import torch

from tests.refusals import refused
from vlmtune.backbones.word_tokenizer import WordTokenizer


def test_ids_follow_the_vocabulary_and_the_end_is_the_highest():
    tokenizer = WordTokenizer(["red", "cube", "of"], 6)
    ids = tokenizer(["Red CUBE, of", "cube"])
    assert ids.tolist() == [[1, 2, 3, 4, 5, 0], [1, 3, 5, 0, 0, 0]]
    assert ids.dtype == torch.long
    assert ids.argmax(dim=1).tolist() == [4, 2]
    assert tokenizer.vocab_size == 6


def test_unknown_words_are_named_also_after_pickling():
    with refused("'dog', 'zebra' in 'red zebra dog'"):
        WordTokenizer(["red"], 5)(["red", "red zebra dog"])
    tokenizer = WordTokenizer(["red", "cube"], 5)
    assert pickle.loads(pickle.dumps(tokenizer))(["cube"]).equal(tokenizer(["cube"]))


@pytest.mark.parametrize("words", [["red", "red"], ["Red"], ["two words"], [""], []])
def test_bad_vocabularies_are_refused(words):
    with refused("vocabulary of distinct lower-case words"):
        WordTokenizer(words, 5)
