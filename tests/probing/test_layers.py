"""Which numbers `--layer` takes from an image tower."""

import pytest
import torch
from torch.nn.functional import normalize

from tests.backbones import hf_models
from tests.refusals import refused
from tests.tiny import halves, write_model
from vlmtune.adapters import FusionTuning, Matching, MMPred
from vlmtune.backbones import Backbone, Blip, BridgeTower, Flava, Vilt
from vlmtune.model import Model, load
from vlmtune.probing.embeddings import LayerEmbedder
from vlmtune.types import FeatureSpec, Tokens


def images(count: int = 3, side: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["patches", "class"])
def test_a_layer_is_its_mean_patch_or_its_class_token(kind, depth, model_folder):
    model = load(str(model_folder), device="cpu")
    backbone = model.backbone
    pixels = images()
    embedded = LayerEmbedder(model, f"{kind}-{depth}").embed(pixels)
    spec = FeatureSpec("tokens" if kind == "patches" else "state", -depth)
    with torch.no_grad():
        tokens = backbone.encode_image(pixels, spec)
    assert isinstance(tokens, Tokens)
    expected = tokens.values.mean(dim=1) if kind == "patches" else tokens.values[:, 0]
    torch.testing.assert_close(embedded, expected)
    assert embedded.shape[0] == 3
    assert not torch.allclose(embedded, LayerEmbedder(model, f"{kind}-{3 - depth}").embed(pixels))


@pytest.mark.parametrize("write", [write_model, hf_models.write_clip, hf_models.write_blip])
def test_the_projection_takes_what_is_before_it_to_the_embedding(write, tmp_path):
    model = load(str(write(tmp_path / "model")), device="cpu")
    network = model.backbone.model
    before = LayerEmbedder(model, "before-projection").embed(images())
    assert before.shape == (3, 24)
    if write is write_model:
        after = before @ network.visual.proj
    else:
        after = getattr(network, "visual_projection", getattr(network, "vision_proj", None))(before)
    torch.testing.assert_close(after.detach(), LayerEmbedder(model).embed(images()))


def test_both_ways_of_timm_towers_in_open_clip_are_known(tmp_path):
    """SigLIP's tower projects nothing; one with a linear head projects."""
    vision = {"timm_model_name": "test_vit", "timm_model_pretrained": False, "image_size": 160}
    pixels = images(2, 160)
    for pool, head in (("token", "linear"), ("token", "")):
        options = {**vision, "timm_pool": pool, "timm_proj": head}
        folder = write_model(tmp_path / f"model-{head}", vision=options, custom_text=True)
        model = load(str(folder), device="cpu")
        visual = model.backbone.model.visual
        before = LayerEmbedder(model, "before-projection").embed(pixels)
        with torch.no_grad():
            after = visual.head(before) if head else visual.trunk.head(before)
        torch.testing.assert_close(after, LayerEmbedder(model).embed(pixels))


def test_a_model_without_projection_is_refused(tmp_path):
    for name, write in (("timm:", hf_models.write_timm), ("", hf_models.write_siglip)):
        folder = write(tmp_path / write.__name__)
        model = load(f"{name}{folder}", device="cpu", texts=False)
        with refused("a projection after its image tower, got .* choose pooled"):
            LayerEmbedder(model, "before-projection")
        assert LayerEmbedder(model).embed(images()).shape == (3, 24)
    model = load(str(hf_models.write_align(tmp_path / "align")), device="cpu")
    with refused("convolutional"):
        LayerEmbedder(model, "before-projection")


def test_a_joint_adapter_is_probed_through_its_cls_with_a_fixed_text(model_folder):
    backbone = load(str(model_folder), device="cpu").backbone
    torch.manual_seed(0)
    adapter = MMPred()
    adapter.attach(backbone)
    model = Model(backbone, adapter)
    embedder = LayerEmbedder(model, text="a red cube")
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
    other = LayerEmbedder(model, text="a blue dog")
    assert other.identity != embedder.identity
    assert not torch.allclose(other.embed(images()), embedded)


FUSIONS = {
    Blip: hf_models.write_blip,
    BridgeTower: hf_models.write_bridgetower,
    Flava: hf_models.write_flava,
    Vilt: hf_models.write_vilt,
}


@pytest.mark.parametrize("kind", FUSIONS, ids=lambda x: x.__name__)
def test_a_matching_head_is_probed_through_what_it_reads(kind, tmp_path):
    """Before training and after it, with a fixed text, as the head gives the scores."""
    backbone = kind(str(FUSIONS[kind](tmp_path / "model")))
    adapter = FusionTuning()
    adapter.attach(backbone)
    model = Model(backbone, adapter)
    pixels = pictures(backbone)
    embedder = LayerEmbedder(model, text="a red cube")
    embedded = embedder.embed(pixels)
    with torch.no_grad():
        text = adapter.prepare_text(backbone.encode_text(["a red cube"], adapter.text_input))
        image = adapter.prepare_image(backbone.encode_image(pixels, adapter.image_input))
        scores = adapter.score_pairs(image, text[torch.zeros(3, dtype=torch.long)])
        torch.testing.assert_close(head_of(backbone, embedded), scores)
    original = model.original()
    assert isinstance(original.adapter, Matching)
    assert original.trained_parameters == 0 < model.trained_parameters
    torch.testing.assert_close(LayerEmbedder(original, text="a red cube").embed(pixels), embedded)
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    assert not torch.allclose(embedder.embed(pixels), embedded)


def pictures(backbone: Backbone) -> torch.Tensor:
    images = [halves(x, "green", i) for i, x in enumerate(("red", "blue", "white"))]
    return torch.stack([backbone.preprocess(image) for image in images])


def head_of(backbone: Backbone, cls: torch.Tensor) -> torch.Tensor:
    """The score that a backbone's matching head gives a [CLS]."""
    head = backbone.fusion._head
    logits = head(cls[:, None]) if isinstance(backbone, Flava) else head(cls)
    return logits[:, 0] if isinstance(backbone, Vilt) else logits[:, 1] - logits[:, 0]


def test_the_contrastive_side_of_fusion_tuning_is_probed(tmp_path):
    backbone = Blip(str(hf_models.write_blip(tmp_path / "blip")))
    adapter = FusionTuning(towers=True, contrast=True)
    adapter.attach(backbone)
    model = Model(backbone, adapter)
    pixels = pictures(backbone)
    embedded = LayerEmbedder(model).embed(pixels)
    original = model.original()
    assert original.untrained
    torch.testing.assert_close(
        normalize(embedded), normalize(LayerEmbedder(original).embed(pixels))
    )


def test_a_head_that_reads_no_cls_is_refused_and_its_patches_are_probed(tmp_path):
    model = load(str(hf_models.write_llava(tmp_path / "llava")), device="cpu", texts=False)
    with refused(r"reads a \[CLS\] token, got .* as with --layer patches-1"):
        LayerEmbedder(model)
    pixels = pictures(model.backbone)
    assert LayerEmbedder(model, "patches-1").embed(pixels).shape[0] == 3
