"""Late interaction against its formula: pair by pair, word by word, patch by patch."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, layer_norm

from tests.adapters.families import attached, features, plain
from vlmtune.adapters.late_interaction import LateInteraction
from vlmtune.types import PooledTokens, Tokens

WORDS = [2, 8, 1]  # of each caption


def made(family="open_clip", trained=True, **options):
    """An adapter with weights as if trained, its model, and the features of 4 images, 3 texts."""
    adapter, model = attached(LateInteraction(**options), family)
    if trained:
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return adapter, model, *features(adapter, model)


def token(x, norm, projection, layer):
    """z of one token of CLIP."""
    return norm(x) @ projection + layer.weight @ layer_norm(x, x.shape) + layer.bias


def naive(adapter, model, image, text, words, symmetric):
    """The similarity of an image and a text, from the states of the towers."""
    visual, reader = model.model.visual, model.model
    patches = [token(x, visual.ln_post, visual.proj, adapter.image) for x in image[1:]]
    spoken = text[1 : 1 + words]
    spoken = [token(x, reader.ln_final, reader.text_projection, adapter.text) for x in spoken]
    table = [[float(cosine_similarity(w, p, dim=0)) for p in patches] for w in spoken]
    total = sum(max(row) for row in table) / len(table)
    if symmetric:
        back = sum(max(column) for column in zip(*table, strict=True)) / len(patches)
        total = (total + back) / 2
    return total


@torch.no_grad()
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_scores_are_those_of_the_formula(trained, symmetric, weight):
    adapter, model, image, text = made(trained=trained, symmetric=symmetric, frozen_weight=weight)
    images, texts = plain(model)
    got = adapter(image, text).values
    # The frozen score counts in evaluation only.
    in_training = adapter.train()(image, text).values
    for i in range(4):
        for j, words in enumerate(WORDS):
            row = text.values[j]
            similarity = naive(adapter, model, image.values[i], row, words, symmetric)
            expected = float(adapter.log_scale.exp()) * similarity + float(adapter.bias)
            assert in_training[i, j].item() == pytest.approx(expected, abs=1e-4)
            frozen = float(cosine_similarity(images[i], texts[j], dim=0))
            expected += weight * model.logit_scale * frozen
            assert got[i, j].item() == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", ["open_clip", "hf_clip", "siglip", "flava"])
def test_the_padding_that_a_tower_reads_is_no_word(family):
    """SigLIP's tokens see padding up to its full length; a text still has its own words alone."""
    adapter, model, image, text = made(family)
    assert adapter.text_input.kind == ("words" if family == "siglip" else "state")
    prepared = adapter.prepare_text(text)
    assert prepared.lengths.tolist() == [words + sum(model.text_special) for words in WORDS]
    changed = text.padded(text.token_count + 2)
    torch.testing.assert_close(adapter(image, changed).values, adapter(image, text).values)


@torch.no_grad()
@pytest.mark.parametrize("symmetric", [True, False])
def test_padding_is_neither_the_best_patch_nor_the_best_word(symmetric):
    """The real patch is opposite to the real word; padding of both sides would fit better."""
    adapter, *_ = made(trained=False, symmetric=symmetric)
    start, word, end, padding = torch.eye(16)[:4]
    none = torch.zeros(1, 0)
    patches = torch.stack([-word, word, padding])[None]
    words = torch.stack([start, word, end, -word])[None]
    image = Tokens(patches, torch.tensor([[True, False, False]]))
    text = Tokens(words, torch.tensor([[True, True, True, False]]))
    score = adapter.score_pairs(PooledTokens(none, image), PooledTokens(none, text))
    assert score.item() == pytest.approx(-10)


@torch.no_grad()
def test_recall_is_at_most_the_score_and_equal_where_an_image_has_one_patch():
    adapter, _, image, text = made(frozen_weight=0.3)
    images, texts = adapter.prepare_image(image), adapter.prepare_text(text)
    scores = adapter(image, text).values - adapter.bias
    recalled = adapter.recall_image(images) @ adapter.recall_text(texts).T
    assert (recalled <= scores + 1e-4).all()
    single = images.cut(1)
    recalled = adapter.recall_image(single) @ adapter.recall_text(texts).T + adapter.bias
    for j in range(3):
        got = adapter.score_pairs(single, texts[[j]])
        torch.testing.assert_close(got, recalled[:, j], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_reading_is_the_patch_that_the_score_takes():
    adapter, _, image, text = made()
    images, texts = adapter.prepare_image(image)[[0]], adapter.prepare_text(text)[[1]]
    reading = adapter.reading(images, texts)[0]
    assert reading.sum(dim=1).eq(1).all()
    total = 0.0
    for word in range(1, 1 + WORDS[1]):
        patch = int(reading[word].argmax())
        total += float(texts.tokens.values[0, word] @ images.tokens.values[0, patch])
    score = adapter.log_scale.exp() * total / WORDS[1] + adapter.bias
    torch.testing.assert_close(adapter.score_pairs(images, texts)[0], score)
