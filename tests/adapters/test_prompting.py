import pytest
import torch

from tests.adapters.families import FAMILIES, backbone
from vlmtune.adapters.prompting import cut, insert, word_embeddings
from vlmtune.types import Tokens

LONG = "a red cube left of the blue sphere right of the green metal dog"


@pytest.mark.parametrize("family", FAMILIES)
def test_words_in_front_are_words_in_the_text(family):
    model = backbone(family)
    tower, special = model.text_tower, model.text_special
    prompts = word_embeddings(tower, "a red", special)
    assert prompts.shape == (2, 16)
    texts = ["dog", "cube left of the sphere", LONG]
    got = insert(tower.words(texts), prompts.expand(3, -1, -1), tower, special)
    want = tower.words([f"a red {text}" for text in texts])
    # Prompts push the last words of a long text out, as the tokenizer would.
    assert got.mask.equal(want.mask)
    assert torch.equal(got.values[got.mask], want.values[want.mask])


def test_cut_keeps_what_trails():
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    words = Tokens(torch.arange(10.0).view(2, 5, 1), mask=mask, ids=torch.arange(10).view(2, 5))
    short = cut(words, 4, 2)
    assert short.ids[0].tolist() == [0, 1, 3, 4]
    assert short.ids[1, :3].tolist() == [5, 6, 7]
    assert short.mask.sum(dim=1).tolist() == [4, 3]
    assert short.values[0].flatten().tolist() == [0, 1, 3, 4]
    assert cut(words, 5, 2).ids.equal(words.ids)
    assert cut(Tokens(words.values, mask=mask), 4, 2).ids is None
