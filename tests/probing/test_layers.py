"""Which numbers `--layer` takes from an image tower."""

import pytest
import torch

from tests.backbones import hf_models
from tests.refusals import refused
from tests.tiny import write_model
from vlmtune.adapters.mm_pred import MMPred
from vlmtune.export import load
from vlmtune.export.model import Model
from vlmtune.probing.embeddings import Embedder
from vlmtune.types import FeatureSpec, Tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["patches", "class"])
def test_a_layer_is_its_mean_patch_or_its_class_token(kind, depth, model_folder):
    model = load(str(model_folder), device="cpu")
    backbone = model.backbone
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    embedded = Embedder(model, f"{kind}-{depth}").embed(pixels)
    spec = FeatureSpec("tokens" if kind == "patches" else "state", -depth)
    with torch.no_grad():
        tokens = backbone.encode_image(pixels, spec)
    assert isinstance(tokens, Tokens)
    expected = tokens.values.mean(dim=1) if kind == "patches" else tokens.values[:, 0]
    torch.testing.assert_close(embedded, expected)
    assert embedded.shape[0] == 3
    assert not torch.allclose(embedded, Embedder(model, f"{kind}-{3 - depth}").embed(pixels))


def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("write", [write_model, hf_models.write_clip, hf_models.write_blip])
def test_the_projection_takes_what_is_before_it_to_the_embedding(write, tmp_path):
    model = load(str(write(tmp_path / "model")), device="cpu")
    network = model.backbone.model
    before = Embedder(model, "before-projection").embed(images())
    assert before.shape == (3, 24)
    if write is write_model:
        after = before @ network.visual.proj
    else:
        after = getattr(network, "visual_projection", getattr(network, "vision_proj", None))(before)
    torch.testing.assert_close(after.detach(), Embedder(model).embed(images()))


def test_both_ways_of_timm_towers_in_open_clip_are_known(tmp_path):
    """SigLIP's tower projects nothing; one with a linear head projects."""
    vision = {"timm_model_name": "test_vit", "timm_model_pretrained": False, "image_size": 160}
    pixels = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    for pool, head in (("token", "linear"), ("token", "")):
        options = {**vision, "timm_pool": pool, "timm_proj": head}
        folder = write_model(tmp_path / f"model-{head}", vision=options, custom_text=True)
        model = load(str(folder), device="cpu")
        visual = model.backbone.model.visual
        before = Embedder(model, "before-projection").embed(pixels)
        with torch.no_grad():
            after = visual.head(before) if head else visual.trunk.head(before)
        torch.testing.assert_close(after, Embedder(model).embed(pixels))


def test_a_model_without_projection_is_refused(tmp_path):
    for name, write in (("timm:", hf_models.write_timm), ("", hf_models.write_siglip)):
        folder = write(tmp_path / write.__name__)
        model = load(f"{name}{folder}", device="cpu", texts=False)
        with refused("a projection after its image tower, got .* choose pooled"):
            Embedder(model, "before-projection")
        assert Embedder(model).embed(images()).shape == (3, 24)
    model = load(str(hf_models.write_align(tmp_path / "align")), device="cpu")
    with refused("convolutional"):
        Embedder(model, "before-projection")


def test_a_joint_adapter_is_probed_through_its_cls_with_a_fixed_text(model_folder):
    backbone = load(str(model_folder), device="cpu").backbone
    torch.manual_seed(0)
    adapter = MMPred()
    adapter.attach(backbone)
    model = Model(backbone, adapter)
    embedder = Embedder(model, text="a red cube")
    embedded = embedder.embed(images())
    with torch.no_grad():
        text = adapter.prepare_text(backbone.encode_text(["a red cube"], adapter.text_input))
        for i, image in enumerate(images()):
            tokens = backbone.encode_image(image[None], adapter.image_input)
            outputs = adapter.cls_outputs(adapter.prepare_image(tokens), text)
            assert outputs.shape == (1, 1, backbone.text_width)
            torch.testing.assert_close(embedded[i], outputs.flatten())
            score = adapter.score_pairs(adapter.prepare_image(tokens), text)
            target = text.pooled[:, : adapter.target_width]
            torch.testing.assert_close(adapter.score_head(outputs, target), score)
    other = Embedder(model, text="a blue dog")
    assert other.identity != embedder.identity
    assert not torch.allclose(other.embed(images()), embedded)


def test_a_joint_adapter_without_cls_is_refused(tmp_path):
    model = load(str(hf_models.write_vilt(tmp_path / "vilt")), device="cpu")
    with refused(r"embedding of images or a \[CLS\] token, got Matching"):
        Embedder(model)
