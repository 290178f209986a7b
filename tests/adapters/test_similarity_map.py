"""Similarity map against its formula: cosine by cosine, and convolutions sum by sum."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from vlmtune.adapters.similarity_map import SimilarityMap
from vlmtune.types import FeatureSpec

TEXTS = ["a red cube", "a metal cube left of the red sphere", "dog right"]


def attached(backbone, **options):
    torch.manual_seed(0)
    adapter = SimilarityMap(**{"words": 8, "channels": 2, "hidden": 3, **options})
    adapter.attach(backbone)
    return adapter.eval()


def features(backbone, adapter):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    image = backbone.encode_image(pixels, adapter.image_input)
    return image, backbone.encode_text(TEXTS, adapter.text_input)


def naive_map(backbone, adapter, state, text):
    """The standardised map of one image and one text, without padding."""
    visual, model = backbone.model.visual, backbone.model
    patches = visual.ln_post(state) @ visual.proj
    last = backbone.encode_text([text], FeatureSpec("tokens")).values[0]
    words = ["<start>", *text.split(), "<end>"]
    known = [word for word in adapter.functional if word in ("left", "right")]
    rows = []
    for word, token in list(zip(words, last, strict=True))[: adapter.words]:
        if word in known:
            rows.append(adapter.functional_rows[known.index(word)])
            continue
        embedded = token @ model.text_projection
        rows.append(torch.stack([cosine_similarity(embedded, z, dim=0) for z in patches]))
    similarities = torch.stack(rows)
    deviation = math.sqrt(float(((similarities - similarities.mean()) ** 2).mean()) + 1e-6)
    return (similarities - similarities.mean()) / deviation


def naive_convolution(channels, layer):
    """A convolution over 3 x 3 numbers with zeros around them, then a ReLU."""
    height, width = channels.shape[1:]
    out = torch.zeros(len(layer.weight), height, width)
    for c in range(len(layer.weight)):
        for y in range(height):
            for x in range(width):
                total = layer.bias[c]
                for dy in (-1, 0, 1):
                    for dx in (-1, 0, 1):
                        if 0 <= y + dy < height and 0 <= x + dx < width:
                            seen = channels[:, y + dy, x + dx]
                            total = total + layer.weight[c, :, dy + 1, dx + 1] @ seen
                out[c, y, x] = max(total, torch.tensor(0.0))
    return out


@torch.no_grad()
@pytest.mark.parametrize("rows", [8, 12])  # the longest text has ten tokens
def test_scores_equal_the_loops(backbone, rows):
    adapter = attached(backbone, words=rows)
    image, text = features(backbone, adapter)
    got = adapter(image, text).values
    for i, state in enumerate(image.values):
        for j, caption in enumerate(TEXTS):
            similarities = naive_map(backbone, adapter, state, caption)
            channels = torch.zeros(1, rows, len(state))
            channels[0, : len(similarities)] = similarities
            channels = naive_convolution(channels, adapter.first)
            channels = naive_convolution(channels, adapter.second)
            hidden = adapter.join.weight @ channels.flatten() + adapter.join.bias
            score = adapter.predict.weight[0] @ hidden.clamp(min=0) + adapter.predict.bias[0]
            torch.testing.assert_close(got[i, j], score, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_functional_words_have_a_row_of_their_own(backbone):
    adapter = attached(backbone, functional=["left", "above", "right", "left of"])
    # "above" is not in the vocabulary, and "left of" is two tokens.
    assert adapter.functional_rows.shape == (2, 17)
    unit = 3 * adapter.functional_rows - 1
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(2))
    assert "functional_rows" in adapter.state_dict()
    assert not adapter.functional_rows.requires_grad
    text = adapter.prepare_text(backbone.encode_text(["red left cube"], adapter.text_input))
    embedded, which = text.values[0].split([backbone.embed_dim, 2], dim=1)
    assert which.tolist() == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]]
    assert embedded.norm(dim=1).round(decimals=4).tolist() == [1, 1, 0, 1, 1]


def test_it_has_the_stated_number_of_parameters(backbone):
    counts = {}
    for rows in (8, 9):
        adapter = attached(backbone, words=rows, channels=4, hidden=128)
        counts[rows] = sum(p.numel() for p in adapter.parameters())
    # Another row of the map has 4 channels of 17 tokens.
    assert counts[9] - counts[8] == 4 * 17 * 128
    apart_from_rows = counts[8] - 8 * 4 * 17 * 128
    assert apart_from_rows + 30 * 4 * 197 * 128 == 3_026_365
