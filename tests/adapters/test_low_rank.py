from typing import get_args

import pytest
import torch
from timm.models.vision_transformer import Block
from torch import nn
from torch.nn.utils import parametrize
from transformers import BlipTextConfig
from transformers.models.blip.modeling_blip_text import BlipTextLayer

from vlmtune.adapters.lora import Target
from vlmtune.adapters.low_rank import LowRank, projections

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


def test_the_formula():
    torch.manual_seed(0)
    layer = nn.Linear(4, 6, bias=False).requires_grad_(False)
    weight = layer.weight.detach().clone()
    update = LowRank(layer.weight, parts=3, chosen=[0, 2], rank=2, alpha=6.0, dropout=0.0)
    parametrize.register_parametrization(layer, "weight", update)
    assert layer.weight.equal(weight)
    nn.init.normal_(update.up)
    first, last = (3.0 * b @ a for a, b in zip(update.down, update.up, strict=True))
    want = weight + torch.cat([first, torch.zeros(2, 4), last])
    torch.testing.assert_close(layer.weight, want)
    assert sum(p.numel() for p in layer.parameters() if p.requires_grad) == 2 * 2 * (4 + 2)
