import pytest
import torch

from tests.adapters.families import (
    FAMILIES,
    TEXTS,
    attached,
    backbone,
    embedded,
    fit,
    near,
    plain,
    trained,
)
from vlmtune.adapters.word_prompts import WordPrompts
from vlmtune.types import FeatureSpec


def rows_of(adapter):
    """The token ids with a trained difference, in the order of its rows."""
    row_of = adapter.get_buffer("row_of")
    ids = (row_of >= 0).nonzero()[:, 0]
    assert row_of[ids].tolist() == list(range(len(ids)))
    return ids


def ids_of(model, texts) -> set[int]:
    """Token ids of the words of texts, the special ones left out."""
    lead, trail = model.text_special
    rows = [model.text_tower.words([text]).ids[0].tolist() for text in texts]
    return {token for row in rows for token in row[lead : len(row) - trail]}


def moved(adapter) -> set[int]:
    rows = rows_of(adapter)
    return set(rows[adapter.delta.any(dim=1)].tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_tower_with_another_table_of_words(family):
    adapter, model = attached(WordPrompts(), family)
    assert trained(model) == set()
    for got, want in zip(embedded(adapter, model), plain(model), strict=True):
        near(got, want)
    fit(adapter, model)
    other = backbone(family)
    other.text_tower.embedding.weight.data += adapter.delta.detach()
    image, text = embedded(adapter, model)
    near(text, plain(other)[1])
    assert not torch.allclose(text, plain(model)[1], atol=1e-3)
    assert image.equal(plain(model)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_words_that_were_seen_move(family):
    adapter, model = attached(WordPrompts(), family)
    fit(adapter, model, texts=["red cube", "blue cube"], steps=3)
    assert moved(adapter) == ids_of(model, ["red", "blue", "cube"])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_listed_words_are_trained(family):
    adapter, model = attached(WordPrompts(["red dog", "cube"]), family)
    assert set(rows_of(adapter).tolist()) == ids_of(model, ["red", "dog", "cube"])
    assert adapter.delta.shape == (3, 16)
    fit(adapter, model, texts=TEXTS)
    assert moved(adapter) == ids_of(model, ["red", "dog", "cube"])
    # What the list lacks is as it was.
    sphere = model.encode_text(["blue sphere"], adapter.text_input)
    near(
        adapter.embed_text(sphere), model.encode_text(["blue sphere"], FeatureSpec("pooled")).values
    )


def test_listed_words_are_looked_up_in_blocks(monkeypatch):
    monkeypatch.setattr("vlmtune.adapters.word_prompts.WORDS_AT_A_TIME", 2)
    adapter, model = attached(WordPrompts(["red", "dog", "cube", "sphere", "left"]))
    want = ids_of(model, ["red", "dog", "cube", "sphere", "left"])
    assert rows_of(adapter).tolist() == sorted(want)
