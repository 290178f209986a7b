"""LoRA on each family of backbones, and the weights that it updates."""

from typing import get_args

import pytest
import torch
from timm.models.vision_transformer import Block
from torch import nn
from transformers import BlipTextConfig
from transformers.models.blip.modeling_blip_text import BlipTextLayer

from tests.adapters.families import (
    FAMILIES,
    attached,
    backbone,
    embedded,
    fit,
    near,
    plain,
    trained,
)
from vlmtune.adapters.lora import LoRA, Target
from vlmtune.adapters.low_rank import projections
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

ALL = ["query", "key", "value", "out", "mlp"]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_backbone_with_products_added(family):
    adapter, model = attached(LoRA(rank=2, alpha=3.0, targets=ALL), family)
    fit(adapter, model)
    other = backbone(family)
    updates = {n: p for n, p in model.named_parameters() if n.endswith("up")}
    with torch.no_grad():
        for name, up in updates.items():
            down = model.get_parameter(f"{name[:-2]}down")
            products = [3.0 / 2 * b @ a for a, b in zip(down, up, strict=True)]
            path = name.replace("parametrizations.", "").removesuffix(".0.up")
            other.get_parameter(path).add_(torch.cat(products))
    assert len(updates) == {"open_clip": 24}.get(family, 36)
    for got, want in zip(embedded(adapter, model), plain(other), strict=True):
        near(got, want)


def test_packed_projections_are_chosen_one_by_one():
    adapter, model = attached(LoRA(rank=2, targets=["query", "value"], image=False))
    fit(adapter, model)
    base = dict(backbone().named_parameters())
    for number, block in enumerate(model.model.transformer.resblocks):
        old = base[f"model.transformer.resblocks.{number}.attn.in_proj_weight"]
        changed = (block.attn.in_proj_weight != old).view(3, 16, 16).any(dim=2).all(dim=1)
        assert changed.tolist() == [True, False, True]
    assert not any("visual" in name for name in trained(model))
    assert adapter.image_input == FeatureSpec("pooled")


def test_dropout_is_for_training_and_keeps_the_mean():
    adapter, model = attached(LoRA(rank=4, dropout=0.5, targets=["mlp"], image=False))
    fit(adapter, model, steps=3)
    layer = model.model.transformer.resblocks[0].mlp.c_fc
    update = layer.parametrizations.weight[0]
    want = update.update()
    assert update.update().equal(want)
    adapter.train()
    drawn = torch.stack([update.update() for _ in range(400)])
    columns = drawn.any(dim=1)  # a column is there, doubled, or is not
    assert 0.4 < columns.float().mean() < 0.6
    near(drawn[0][:, columns[0]], 2 * want[:, columns[0]])
    torch.testing.assert_close(drawn.mean(dim=0), want, rtol=0.4, atol=1e-3)


def test_weights_in_16_bits_have_updates_in_32(model_folder):
    model, adapter = OpenClip(str(model_folder), precision="bf16"), LoRA(targets=["mlp"])
    adapter.attach(model)
    assert {model.get_parameter(name).dtype for name in trained(model)} == {torch.float32}
    fit(adapter, model)
    assert model.model.transformer.resblocks[0].mlp.c_fc.weight.dtype == torch.bfloat16


TARGETS = get_args(Target)


def blip() -> nn.Module:
    config = BlipTextConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12)
    layer = BlipTextLayer(config, 0)
    return nn.ModuleList([layer.attention, layer.intermediate, layer.output])


BLOCKS = {
    "timm": (
        Block(8, 2),
        {"query": [("attn.qkv", 0)], "key": [("attn.qkv", 1)], "value": [("attn.qkv", 2)]}
        | {"out": [("attn.proj", 0)], "mlp": [("mlp.fc1", 0), ("mlp.fc2", 0)]},
    ),
    "torch": (
        nn.TransformerEncoderLayer(8, 2),
        {"query": [("self_attn", 0)], "key": [("self_attn", 1)], "value": [("self_attn", 2)]}
        | {"out": [("self_attn.out_proj", 0)], "mlp": [("linear1", 0), ("linear2", 0)]},
    ),
    "blip": (
        blip(),
        {name: [(f"0.self.{name}", 0)] for name in ("query", "key", "value")}
        | {"out": [("0.output.dense", 0)], "mlp": [("1.dense", 0), ("2.dense", 0)]},
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_what_the_weights_of_a_block_do(name):
    block, want = BLOCKS[name]
    paths = {id(module): path for path, module in block.named_modules()}
    got = {
        target: [(paths[id(m)], part) for m, _, _, (part,) in projections(block, [target])]
        for target in TARGETS
    }
    assert got == want
    every = projections(block, TARGETS)
    together = {(paths[id(m)], part) for m, _, _, parts in every for part in parts}
    assert together == {one for several in want.values() for one in several}
