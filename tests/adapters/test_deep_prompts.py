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
from vlmtune.adapters.deep_prompts import DeepPrompts
from vlmtune.types import FeatureSpec


def moved(adapter, model) -> set[str]:
    before = {n: p.detach().clone() for n, p in adapter.named_parameters()}
    fit(adapter, model)
    return {n for n, p in adapter.named_parameters() if not p.equal(before[n])}


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_images_are_those_of_a_plain_loop(coupled, depth):
    adapter, model = attached(DeepPrompts(length=2, depth=depth, coupled=coupled))
    image = embedded(adapter, model)[0]
    visual = model.model.visual
    prompts = adapter.image_prompts()
    assert prompts.shape == (depth, 2, 24)
    tokens = model.encode_image(pixels(), FeatureSpec("state", -4)).values
    for number, block in enumerate(visual.transformer.resblocks):
        if number < depth:
            tokens = torch.cat([tokens[:, :17], prompts[number].repeat(4, 1, 1)], dim=1)
        tokens = block(tokens)
    near(image, visual.ln_post(tokens[:, 0]) @ visual.proj)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_texts_are_those_of_a_plain_loop(depth):
    adapter, model = attached(DeepPrompts(length=2, depth=depth))
    network = model.model
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


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"text", *(f"coupling.{i}.{n}" for i in range(3) for n in ("weight", "bias"))}),
        ({"coupled": False, "depth": 2}, {"text", "image"}),
        ({"text": False}, {"image"}),
        ({"image": False}, {"text"}),
    ],
)
def test_prompts_move_and_nothing_else(options, names):
    adapter, model = attached(DeepPrompts(**options))
    assert trained(model) == set()
    assert moved(adapter, model) == names
    for got, want in zip(plain(model), plain(backbone()), strict=True):
        assert got.equal(want)
    sides = zip(embedded(adapter, model), plain(model), ("image", "text"), strict=True)
    for got, frozen, side in sides:
        assert got.equal(frozen) is (options.get(side) is False)


def test_coupled_images_follow_the_texts():
    adapter, model = attached(DeepPrompts())
    want = [layer(prompts) for layer, prompts in zip(adapter.coupling, adapter.text, strict=True)]
    near(adapter.image_prompts(), torch.stack(want))
    before = embedded(adapter, model)[0]
    with torch.no_grad():
        adapter.text[2] += 1.0
    assert not torch.allclose(embedded(adapter, model)[0], before, atol=1e-3)
