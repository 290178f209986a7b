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
from tests.runs import QUIET, module
from tests.runs import fit as train
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.objectives.fsc_clip import FSCClip
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import FeatureSpec

pytestmark = QUIET


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_backbone(family, tokens):
    adapter, model = attached(FullFineTuning(tokens=tokens), family)
    fit(adapter, model)
    before = plain(backbone(family))
    for got, want, old in zip(embedded(adapter, model), plain(model), before, strict=True):
        near(got, want)
        assert not torch.allclose(got, old, atol=1e-3)


def test_all_weights_of_clip_are_trained_but_its_own_temperature():
    adapter, model = attached(FullFineTuning())
    assert {n for n, _ in model.named_parameters()} - trained(model) == {"model.logit_scale"}
    assert adapter.log_scale.requires_grad
    frozen, _ = attached(FullFineTuning(learn_scale=False, initial_scale=10.0))
    assert not frozen.log_scale.requires_grad
    assert frozen.log_scale.exp().item() == pytest.approx(10)


def test_the_bias_starts_where_it_is_told():
    given, _ = attached(FullFineTuning(initial_bias=-2.0))
    assert given.bias.item() == -2
    sigmoid, model = attached(FullFineTuning(initial_bias=None), "siglip")
    assert sigmoid.bias.item() == pytest.approx(model.logit_bias)
    assert model.logit_bias != 0
    assert sigmoid.bias.requires_grad


def test_what_no_embedding_uses_stays():
    _, model = attached(FullFineTuning(), "flava")
    assert trained(model)
    assert not any("multimodal" in name or "pooler" in name for name in trained(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_side(family):
    image, text = (
        trained(attached(FullFineTuning(**only), family)[1])
        for only in ({"text": False}, {"image": False})
    )
    assert image
    assert text
    assert not image & text
    assert image | text == trained(attached(FullFineTuning(), family)[1])
    adapter, model = attached(FullFineTuning(image=False), family)
    assert adapter.image_input == FeatureSpec("pooled")
    assert embedded(adapter, model)[0].equal(plain(model)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_rates_of_layers(family):
    adapter, model = attached(FullFineTuning(decay=0.5), family)
    scales = {id(p): scale for p, scale in adapter.lr_scales()}
    assert scales.keys() == {id(p) for p in model.parameters() if p.requires_grad}
    assert set(scales.values()) == {1.0, 0.5, 0.25, 0.125, 0.0625}
    assert scales[id(model.text_tower.embedding.weight)] == 0.0625


def test_tokens_of_clip_are_normed_and_projected():
    adapter, model = attached(FullFineTuning(tokens=True))
    image = model.encode_image(pixels(), adapter.image_input)
    text = model.encode_text(TEXTS, adapter.text_input)
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
    image = model.encode_image(pixels(), adapter.image_input)
    text = model.encode_text(TEXTS, adapter.text_input)
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


def test_a_loss_on_tokens_trains_it_in_chunks_too(model_folder, shards, tmp_path):
    losses = []
    for chunk in (None, 2):
        adapter, objectives = FullFineTuning(tokens=True), [InfoNCE(), FSCClip()]
        made = module(model_folder, adapter, objectives, chunk=chunk)
        trainer, watch = train(made, shards, tmp_path, steps=2)
        assert trainer.callback_metrics["train/FSCClip"] > 0
        losses.append(watch.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
