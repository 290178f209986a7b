"""Perception Encoder in open_clip: timm's vision transformer with rotary positions."""

from functools import partial

import open_clip
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from vlmtune.adapters import DeepPrompts, LastBlocks, LoRA
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec, Tokens

POOLED = FeatureSpec("pooled")
TEXTS = ["a red cube left of the blue sphere", "dog"]
PE = {"timm_model_name": "vit_pe_core_tiny_patch16_384", "timm_pool": "map", "timm_proj": None}
SMALL = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 3, "attn_pool_num_heads": 2}


@pytest.fixture
def path(folder, monkeypatch):
    """A random Perception Encoder of three small blocks: a class token and 4 x 4 patches."""
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, **SMALL))
    path = folder("pe", vision={"image_size": 64, "layers": 1, **PE}, custom_text=True)
    # Fresh weights hardly tell images apart: larger matrices do.
    file = path / "open_clip_model.safetensors"
    state = load_file(file)
    for name, value in state.items():
        if name.startswith("visual.") and value.ndim > 1:
            value.mul_(30.0)
    save_file(state, file)
    return path


@pytest.fixture
def backbone(path):
    return OpenClip(str(path))


@pytest.fixture
def pixels():
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_embeddings_and_tokens_are_the_librarys(path, backbone, pixels):
    model = open_clip.create_model(f"local-dir:{path}").eval()
    with torch.no_grad():
        want = model.encode_image(pixels)
        tokens = model.visual.trunk.forward_intermediates(
            pixels, indices=[-2], intermediates_only=True, output_fmt="NLC"
        )[0]
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(backbone.encode_image(pixels, POOLED).values, want)
    close(backbone.encode_image(pixels, FeatureSpec("tokens", -2)).values, tokens)
    assert want.std(dim=0).mean() > 1e-2  # it tells images apart
    tower = backbone.image_tower
    assert (tower.special, tower.layers, backbone.image_tokens) == (1, 3, 16)
    for layer in (-1, -2, -3, -4):
        state = backbone.encode_image(pixels, FeatureSpec("state", layer))
        assert state.values.shape == (2, 17, 48)
        close(tower.finish(tower.run(state, 4 + layer, 3)), want)
    state = backbone.encode_image(pixels, FeatureSpec("state", -2))
    close(state.values[:, 1:], tokens)


@pytest.mark.parametrize("make", [LoRA, LastBlocks, partial(DeepPrompts, length=2)])
def test_adapters_that_work_inside_the_tower_reach_it(make, backbone, pixels):
    adapter = make()
    adapter.attach(backbone)
    image = backbone.encode_image(pixels, adapter.image_input)
    scores = adapter(image, backbone.encode_text(TEXTS, adapter.text_input)).values
    cross_entropy(scores, torch.arange(2)).backward()
    trained = [p for x in (adapter, backbone) for p in x.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)


def test_a_prompt_is_as_little_turned_as_the_class_token(backbone, pixels):
    state = backbone.encode_image(pixels, FeatureSpec("state", -4)).values
    after = backbone.image_tower.run(Tokens.full(torch.cat([state, state[:, :1]], dim=1)), 0, 3)
    torch.testing.assert_close(after.values[:, 0], after.values[:, -1])
    twice = backbone.image_tower.run(Tokens.full(torch.cat([state, state[:, 1:2]], dim=1)), 0, 3)
    assert not torch.allclose(twice.values[:, 1], twice.values[:, -1], atol=1e-3)
