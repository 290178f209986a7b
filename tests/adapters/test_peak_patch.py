"""PeakPatch's score head against its formula, pair by pair."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity, gelu, layer_norm

from tests.adapters.families import TEXTS, attached, backbone, features, plain
from vlmtune.adapters.peak_patch import PeakPatch
from vlmtune.types import FeatureSpec

LENGTHS = [4, 10, 3]  # tokens of each caption, start and end included


def scores(adapter, model):
    return adapter(*features(adapter, model)).values


def pooled(model, caption, length, layer):
    """What the norm and the projection of CLIP make of the end token after a layer."""
    state = model.encode_text([caption], FeatureSpec("state", layer)).values[0]
    end = state[length - 1]
    return model.model.ln_final(end) @ model.model.text_projection


def mlp(layers, x):
    first, norm, _, last = layers
    hidden = layer_norm(first.weight @ x + first.bias, x.new_empty(256).shape)
    hidden = gelu(hidden * norm.weight + norm.bias)
    return last.weight @ hidden + last.bias


def naive(adapter, model, image, early, last):
    """The score of an image with a text of which the embeddings of both layers are given."""
    image, early, last = (x / x.norm() for x in (image, early, last))
    cosines = torch.stack([early @ image, last @ image])
    of_text = mlp(adapter.text, torch.cat([early, last]))
    of_pair = mlp(adapter.product, last * image)
    features = torch.cat([cosines, of_text, of_pair])
    first, _, _, second = adapter.head
    raw = second.weight @ gelu(first.weight @ features + first.bias) + second.bias
    corrected = cosines[1] + adapter.bound * torch.tanh(raw)
    return (adapter.log_scale.exp() * corrected + adapter.bias).item()


@torch.no_grad()
@pytest.mark.parametrize("layer", [-2, -3])
@pytest.mark.parametrize("bound", [0.2, 0.7])
def test_scores_are_those_of_the_formula(layer, bound):
    options = {"bound": bound, "early_layer": layer, "learn_scale": True}
    adapter, model = attached(PeakPatch(**options))
    for parameter in adapter.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    images, texts = plain(model)
    got = scores(adapter, model)
    for j, caption in enumerate(TEXTS):
        early = pooled(model, caption, LENGTHS[j], layer)
        for i in range(4):
            expected = naive(adapter, model, images[i], early, texts[j])
            assert got[i, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@torch.no_grad()
def test_untrained_scores_are_the_backbones_within_a_thousandth_of_a_cosine():
    adapter, model = attached(PeakPatch())
    images, texts = plain(model)
    cosines = cosine_similarity(images[:, None], texts[None], dim=2)
    corrections = scores(adapter, model) / model.logit_scale - cosines
    assert 0 < float(corrections.abs().max()) < 1e-3


@torch.no_grad()
def test_recall_is_the_frozen_score_and_off_by_the_bound_at_most():
    adapter, model = attached(PeakPatch(initial_scale=14.3))
    for parameter in adapter.parameters():
        parameter.add_(torch.randn_like(parameter) * parameter.requires_grad)
    images, texts = plain(model)
    image, text = features(adapter, model)
    recalled = adapter.recall_image(adapter.prepare_image(image))
    recalled = recalled @ adapter.recall_text(adapter.prepare_text(text)).T
    cosines = cosine_similarity(images[:, None], texts[None], dim=2)
    torch.testing.assert_close(recalled, 14.3 * cosines)
    gaps = (scores(adapter, model) - recalled).abs()
    assert 0.1 < float(gaps.max()) <= 14.3 * 0.2 + 1e-4


def test_parameters_are_those_of_the_paper_on_vit_b_32():
    model = backbone()
    model.embed_dim = 512
    adapter = PeakPatch()
    adapter.attach(model)
    count = sum(p.numel() for p in adapter.parameters() if p.requires_grad)
    assert count == 493_825
    assert adapter.log_scale.item() == pytest.approx(math.log(model.logit_scale))


@pytest.mark.parametrize(("blocks", "layer"), [(12, -6), (24, -11), (6, -3), (3, -2), (1, -2)])
def test_the_papers_layer_is_kept_in_proportion(blocks, layer):
    """Layer 7 of 12; the embeddings before the first block if there is no earlier layer."""
    model = backbone()
    model.text_tower.layers = blocks
    adapter = PeakPatch()
    # Only towers of its depth have the layer, and this one has three blocks.
    model.fits = lambda spec, modality: None
    adapter.attach(model)
    assert adapter.text_input == FeatureSpec("state", layer)
