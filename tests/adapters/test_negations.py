"""Texts with a negation: their frozen score is that of a text without words."""

import pytest
import torch
from torch.nn.functional import normalize

from vlmtune.adapters.grounded_words import GroundedWords
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
