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
from tests.runs import QUIET, module
from tests.runs import fit as train
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import FeatureSpec

pytestmark = QUIET


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_backbone_with_the_weights_it_has_now(family):
    adapter, model = attached(LastBlocks(image=2, text=1), family)
    for got, want in zip(embedded(adapter, model), plain(model), strict=True):
        near(got, want)
    fit(adapter, model)
    before = plain(backbone(family))
    for got, want, old in zip(embedded(adapter, model), plain(model), before, strict=True):
        near(got, want)
        assert not torch.allclose(got, old, atol=1e-3)


def test_which_weights_are_trained():
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


def test_a_side_of_no_blocks_reads_frozen_embeddings():
    adapter, model = attached(LastBlocks(image=0, text=1))
    assert adapter.image_input == FeatureSpec("pooled")
    assert not any("visual" in name for name in trained(model))
    image, _ = embedded(adapter, model)
    assert image.equal(plain(model)[0])


def test_all_blocks_are_all_but_what_comes_before_them():
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
