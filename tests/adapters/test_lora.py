import pytest
import torch

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
from vlmtune.adapters.lora import LoRA
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

ALL = ["query", "key", "value", "out", "mlp"]


def base_name(name: str) -> str:
    return name.replace("parametrizations.", "").replace(".original", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_as_the_backbone_to_the_bit(family):
    adapter, model = attached(LoRA(targets=ALL), family)
    with torch.no_grad():  # with gradients torch takes another way through attention
        found = embedded(adapter, model)
    for got, want in zip(found, plain(backbone(family)), strict=True):
        assert got.equal(want)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_frozen_weights_keep_every_bit_and_their_place(family):
    adapter, model = attached(LoRA(rank=2, targets=ALL), family)
    places = {n: id(p) for n, p in model.named_parameters()}
    fit(adapter, model, steps=3)
    frozen = {base_name(n): p for n, p in model.named_parameters() if not p.requires_grad}
    base = dict(backbone(family).named_parameters())
    assert frozen.keys() == base.keys()
    assert all(value.equal(base[name]) for name, value in frozen.items())
    assert places == {n: id(p) for n, p in model.named_parameters()}
    for got, old in zip(embedded(adapter, model), plain(backbone(family)), strict=True):
        assert not torch.allclose(got, old, atol=1e-3)


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
    model.train()
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
