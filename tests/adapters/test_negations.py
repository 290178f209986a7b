"""Texts with a negation: their frozen score is that of a text without words."""

import pytest
import torch
from torch.nn.functional import normalize

from tests.backbones.kinds import tiny
from tests.tiny import write_model
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.adapters.negations import Negations
from vlmtune.adapters.word_pieces import WordPieces
from vlmtune.adapters.words import word_mask
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import Tokens

TEXTS = ["a red cube", "there is no red cube", "the cube is not red", "a cube without a sphere"]


@pytest.fixture(scope="module")
def attached():
    torch.manual_seed(0)
    model = OpenClip("checkpoints/scenes-clip").eval()
    adapter = GroundedWords()
    adapter.attach(model)
    return adapter.eval(), model


@torch.no_grad()
def embedded(adapter, model, known):
    """The embeddings of the texts, if training had these words; none before training."""
    torch.nn.init.zeros_(adapter.unread.read)
    for word in known:
        adapter.unread.read[model.text_tower.words([word]).word_ids[0, 1]] = 0.1
    return adapter.prepare_text(model.encode_text(TEXTS, adapter.text_input)).pooled


def test_a_known_negation_leaves_no_frozen_score(attached):
    adapter, model = attached
    before = embedded(adapter, model, [])
    after = embedded(adapter, model, ["no", "not", "cube", "red"])
    # A word's tokens without the word.
    tower = model.text_tower
    values = tower.words(["red"]).values[:, [0, 2]]
    with torch.no_grad():
        state = tower.run(tower.start(Tokens.full(values)), 0, tower.layers)
        empty = normalize(tower.finish(state))
    torch.testing.assert_close(after[1:3], empty.expand(2, -1))
    # Nor is a word that training lacks compared with patches there: "there is no red cube".
    embedded(adapter, model, ["there", "is", "no", "cube"])
    text = adapter.prepare_text(model.encode_text(TEXTS, adapter.text_input))
    compared = text.tokens.values[:, :, -model.embed_dim :].abs().amax(dim=(1, 2))
    assert compared.gt(0).tolist() == [True, False, True, True]
    # Training had no "without".
    torch.testing.assert_close(after[[0, 3]], before[[0, 3]])
    assert not torch.allclose(before[1], before[2])


def negated(model, texts):
    """Which texts have a negation, if training had all tokens."""
    tower = model.text_tower
    tokens = tower.words(texts)
    pieces = WordPieces(tower.vocabulary(), tower.embedding.num_embeddings)
    words = pieces(tokens.word_ids, word_mask(tokens.mask, model.text_special))
    known = torch.ones_like(tokens.mask)
    return Negations(model)(tokens, known, words).tolist()


def test_clips_tokenizer_splits_contractions(tmp_path):
    model = OpenClip(str(write_model(tmp_path / "bpe", vocabulary=False)))
    texts = ["No cube", "the cube ISN'T red", "cubes aren’t red", "it cannot roll", "it's none."]
    assert negated(model, texts) == [True] * 5
    assert not any(negated(model, ["a can of tea", "its t-shirt", "a notary", "nora", "don"]))


def test_a_negation_at_the_start_of_a_text_may_be_another_token():
    # SigLIP 2's tokenizer marks the space before a word, and has no pieces for these words here.
    model = tiny("siglip2_naflex")
    assert negated(model, ["no cube", "No cube", "red no", "the cube isnot"]) == [1, 1, 1, 0]
    assert not any(negated(model, ["a piano", "a notary", "noon", "on"]))
