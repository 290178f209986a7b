"""Fine-tuning of the towers: all of their weights, or their last blocks."""

import pytest
import torch

from tests.adapters.families import (
    FAMILIES,
    TEXTS,
    attached,
    backbone,
    embedded,
    features,
    fit,
    near,
    pixels,
    plain,
    trained,
)
from tests.runs import QUIET, module
from tests.runs import fit as train
from vlmtune.adapters import FullFineTuning, LastBlocks
from vlmtune.objectives import InfoNCE
from vlmtune.types import FeatureSpec

pytestmark = QUIET
KINDS = {
    "full": FullFineTuning,
    "tokens": lambda: FullFineTuning(tokens=True),
    "last": lambda: LastBlocks(image=2, text=1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_backbone_with_the_weights_it_has_now(family, kind):
    adapter, model = attached(KINDS[kind](), family)
    for got, want in zip(embedded(adapter, model), plain(model), strict=True):
        near(got, want)
    fit(adapter, model)
    before = plain(backbone(family))
    for got, want, old in zip(embedded(adapter, model), plain(model), before, strict=True):
        near(got, want)
        assert not torch.allclose(got, old, atol=1e-3)


def test_all_weights_but_clips_own_temperature_are_trained_and_the_bias_starts_where_it_is_told():
    adapter, model = attached(FullFineTuning())
    assert {n for n, _ in model.named_parameters()} - trained(model) == {"model.logit_scale"}
    assert adapter.log_scale.requires_grad
    frozen, _ = attached(FullFineTuning(learn_scale=False, initial_scale=10.0))
    assert not frozen.log_scale.requires_grad
    assert frozen.log_scale.exp().item() == pytest.approx(10)
    given, _ = attached(FullFineTuning(initial_bias=-2.0))
    assert given.bias.item() == -2
    sigmoid, model = attached(FullFineTuning(initial_bias=None), "siglip")
    assert sigmoid.bias.item() == pytest.approx(model.logit_bias)
    assert model.logit_bias != 0
    assert sigmoid.bias.requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_rates_of_layers(family):
    adapter, model = attached(FullFineTuning(decay=0.5), family)
    scales = {id(p): scale for p, scale in adapter.lr_scales()}
    assert scales.keys() == {id(p) for p in model.parameters() if p.requires_grad}
    assert set(scales.values()) == {1.0, 0.5, 0.25, 0.125, 0.0625}
    assert scales[id(model.text_tower.embedding.weight)] == 0.0625


def test_rates_of_layers_need_no_tower_that_stays_frozen():
    adapter, model = attached(FullFineTuning(image=False, decay=0.5), "align")
    assert model.image_tower is None
    scaled = {id(parameter) for parameter, _ in adapter.lr_scales()}
    assert scaled == {id(p) for p in model.parameters() if p.requires_grad}


def test_tokens_of_clip_are_normed_and_projected():
    adapter, model = attached(FullFineTuning(tokens=True))
    image, text = features(adapter, model)
    patches, words = adapter.embed_patches(image), adapter.embed_words(text)
    network = model.model
    last = network.visual.transformer.resblocks[-1](
        model.encode_image(pixels(), FeatureSpec("state", -2)).values
    )[:, 1:]
    near(patches.values, network.visual.ln_post(last) @ network.visual.proj)
    assert patches.mask.all()
    final = model.encode_text(TEXTS, FeatureSpec("tokens", -1))
    assert words.mask.equal(final.mask)
    near(words.values, final.values @ network.text_projection)
    # The end token is what is pooled.
    ends = words.values[torch.arange(3), words.mask.sum(dim=1) - 1]
    near(ends, adapter.embed_text(text))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_each_family_depend_on_nothing_else(family):
    adapter, model = attached(FullFineTuning(tokens=True), family)
    image, text = features(adapter, model)
    patches, words = adapter.embed_patches(image), adapter.embed_words(text)
    assert patches.values.shape == (4, model.image_tokens, model.embed_dim)
    assert words.mask.equal(text.mask)
    assert not words.values[~words.mask].any()
    for row, caption in enumerate(TEXTS):
        one = model.encode_text([caption], adapter.text_input)
        single = adapter.embed_patches(image[row : row + 1])
        alone = adapter.embed_words(one)
        near(single.values[0], patches.values[row])
        near(alone.values[0], words.values[row, : alone.values.shape[1]])


# -- last blocks ------------------------------------------------------------------------------


def test_which_weights_last_blocks_train():
    adapter, model = attached(LastBlocks(image=1, text=2))
    image, text = "model.visual.transformer.resblocks.2.", "model.transformer.resblocks."
    want = {
        name
        for name, _ in model.named_parameters()
        if name.startswith((image, f"{text}1.", f"{text}2."))
        or name in ("model.visual.proj", "model.text_projection")
        or name.startswith(("model.visual.ln_post", "model.ln_final"))
    }
    assert trained(model) == want
    assert adapter.image_input == FeatureSpec("state", -2)
    assert adapter.text_input == FeatureSpec("state", -3)


def test_no_blocks_read_frozen_embeddings_and_all_leave_what_comes_before_them():
    adapter, model = attached(LastBlocks(image=0, text=1))
    assert adapter.image_input == FeatureSpec("pooled")
    assert not any("visual" in name for name in trained(model))
    image, _ = embedded(adapter, model)
    assert image.equal(plain(model)[0])
    _, model = attached(LastBlocks(image=3, text=3))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    visual = {"class_embedding", "positional_embedding", "conv1.weight"}
    visual |= {"ln_pre.weight", "ln_pre.bias"}
    text = {"positional_embedding", "token_embedding.weight", "logit_scale"}
    assert frozen == {f"model.visual.{name}" for name in visual} | {f"model.{n}" for n in text}


def test_rates_of_layers_reach_the_optimizer(model_folder, shards, tmp_path):
    made = module(model_folder, LastBlocks(image=2, text=1, decay=0.5), [InfoNCE()])
    trainer, _ = train(made, shards, tmp_path, steps=1)
    scales = {id(p): scale for p, scale in made.adapter.lr_scales()}
    seen = set()
    for group in trainer.optimizers[0].param_groups:
        assert "scale" not in group
        (kind,) = {(p.ndim <= 1, scales[id(p)]) for p in group["params"]}
        assert group["initial_lr"] == pytest.approx(1e-3 * kind[1])
        assert group["weight_decay"] == (0 if kind[0] else 1e-4)
        seen.add(kind)
    assert seen == {(vector, scale) for vector in (True, False) for scale in (1.0, 0.5, 0.25)}
    rates = [group["lr"] / group["initial_lr"] for group in trainer.optimizers[0].param_groups]
    assert rates == pytest.approx([rates[0]] * 6)
