"""Prompts: one context for all texts, words that are tuned, and prompts of several blocks."""

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
    pixels,
    plain,
    trained,
)
from vlmtune.adapters import ContextPrompts, DeepPrompts, WordPrompts
from vlmtune.adapters.prompting import word_embeddings
from vlmtune.types import FeatureSpec, Tokens

# The last words of the long one make room for prompts, as for words in the tokenizer.
CAPTIONS = [*TEXTS, "a red cube left of the blue sphere right of the green metal dog"]

# -- context prompts --------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_as_the_words_it_is_given(family):
    adapter, model = attached(ContextPrompts(init="a red"), family)
    assert adapter.context.shape == (2, 16)
    image, text = embedded(adapter, model, CAPTIONS)
    assert image.equal(plain(model)[0])
    near(text, plain(model, [f"a red {caption}" for caption in CAPTIONS])[1])


def test_only_the_context_moves_and_starts_small():
    adapter, model = attached(ContextPrompts(length=3))
    assert trained(model) == set()
    assert {n for n, p in adapter.named_parameters() if p.requires_grad} == {"context"}
    before = embedded(adapter, model)[1]
    fit(adapter, model)
    assert not torch.allclose(embedded(adapter, model)[1], before, atol=1e-4)
    for got, want in zip(plain(model), plain(backbone()), strict=True):
        assert got.equal(want)
    adapter, _ = attached(ContextPrompts(length=8))
    assert adapter.context.std().item() == pytest.approx(0.02, rel=0.3)
    assert adapter.context.mean().abs().item() < 0.01


# -- word prompts -----------------------------------------------------------------------------


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


def moved_words(adapter) -> set[int]:
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
    assert moved_words(adapter) == ids_of(model, ["red", "blue", "cube"])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_listed_words_are_trained(family):
    adapter, model = attached(WordPrompts(["red dog", "cube"]), family)
    assert set(rows_of(adapter).tolist()) == ids_of(model, ["red", "dog", "cube"])
    assert adapter.delta.shape == (3, 16)
    fit(adapter, model, texts=TEXTS)
    assert moved_words(adapter) == ids_of(model, ["red", "dog", "cube"])
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


# -- deep prompts -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["open_clip", "siglip"])  # class token, pooled patches
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_images_are_those_of_a_plain_loop(coupled, depth, family):
    adapter, model = attached(DeepPrompts(length=2, depth=depth, coupled=coupled), family)
    tower, image = model.image_tower, embedded(adapter, model)[0]
    prompts = adapter.image_prompts()
    assert prompts.shape == (depth, 2, 24)
    tokens = model.encode_image(pixels(), FeatureSpec("state", -4)).values
    count = tokens.shape[1]
    for number in range(tower.layers):
        if number < depth:
            tokens = torch.cat([tokens[:, :count], prompts[number].repeat(4, 1, 1)], dim=1)
        tokens = tower.run(Tokens.full(tokens), number, number + 1).values
    near(image, tower.finish(Tokens.full(tokens[:, :count])))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_texts_are_those_of_a_plain_loop(depth):
    adapter, model = attached(DeepPrompts(length=2, depth=depth, init="a red cube"))
    network = model.model
    near(adapter.text[0], word_embeddings(model.text_tower, "a red", model.text_special))
    for row, caption in enumerate(TEXTS):
        words = model.text_tower.words([caption]).values
        tokens = torch.cat([words[:, :1], adapter.text[0][None], words[:, 1:]], dim=1)
        tokens = tokens + network.positional_embedding[: tokens.shape[1]]
        causal = torch.full((tokens.shape[1],) * 2, -torch.inf).triu(1)
        for number, block in enumerate(network.transformer.resblocks):
            if 0 < number < depth:
                parts = [tokens[:, :1], adapter.text[number][None], tokens[:, 3:]]
                tokens = torch.cat(parts, dim=1)
            tokens = block(tokens, attn_mask=causal)
        want = network.ln_final(tokens[:, -1]) @ network.text_projection
        near(embedded(adapter, model)[1][row : row + 1], want)


@pytest.mark.parametrize("family", FAMILIES)
def test_shallow_prompts_that_are_words_are_words(family):
    adapter, model = attached(DeepPrompts(length=2, depth=1, init="a red cube"), family)
    near(embedded(adapter, model)[1], plain(model, [f"a red {text}" for text in TEXTS])[1])


def test_coupled_images_follow_the_texts():
    adapter, model = attached(DeepPrompts())
    want = [layer(prompts) for layer, prompts in zip(adapter.coupling, adapter.text, strict=True)]
    near(adapter.image_prompts(), torch.stack(want))
    before = embedded(adapter, model)[0]
    with torch.no_grad():
        adapter.text[2] += 1.0
    assert not torch.allclose(embedded(adapter, model)[0], before, atol=1e-3)
