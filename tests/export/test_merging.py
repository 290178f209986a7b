"""A merged checkpoint scores as the trained model did, in the library it came from."""

import math
import stat

import open_clip
import pytest
import torch
import transformers
from PIL import Image

import vlmtune
from tests.backbones.hf_models import write_align, write_blip, write_clip, write_siglip
from tests.model.checkpoints import checkpoint
from tests.refusals import command_refused, refused
from tests.tiny import WORDS, write_model
from vlmtune.adapters import (
    ContextPrompts,
    FullFineTuning,
    FusionTuning,
    LastBlocks,
    LinearProbe,
    LoRA,
    TextMap,
)
from vlmtune.backbones import HFCLIP, Align, Blip, OpenClip, SigLIP
from vlmtune.cli.main import main
from vlmtune.export.merging import save_merged
from vlmtune.model.model import Model

TEXTS = [f"a {WORDS[1]} {WORDS[4]}", "the dog"]
ADAPTERS = {
    "full": FullFineTuning,
    "last": lambda: LastBlocks(1, 1),
    "lora": lambda: LoRA(targets=["query", "value", "mlp"]),
}


def trained(backbone, adapter):
    """The model after a training that moved every trained weight."""
    adapter.attach(backbone)
    torch.manual_seed(0)
    for part in (backbone, adapter):
        for name, weight in part.named_parameters():
            if weight.requires_grad and name != "bias":
                weight.data.add_(0.05 * torch.randn_like(weight))
    return Model(backbone, adapter)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_open_clip_loads_it(kind, model_folder, tmp_path, pictures):
    model = trained(OpenClip(str(model_folder)), ADAPTERS[kind]())
    want = model.score(pictures, TEXTS)
    untrained = vlmtune.load(model_folder, device="cpu").score(pictures, TEXTS)
    assert not torch.allclose(want, untrained, atol=0.1)
    assert save_merged(tmp_path / "merged", model) == ""
    got = vlmtune.load(tmp_path / "merged", device="cpu").score(pictures, TEXTS)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    network = open_clip.create_model(f"local-dir:{tmp_path / 'merged'}")
    assert network.state_dict().keys() == OpenClip(str(model_folder)).model.state_dict().keys()
    assert network.logit_scale.item() == pytest.approx(model.adapter.log_scale.item())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "merged").iterdir()}
    assert len(modes) == 1
    model.adapter.bias.data.fill_(-3.0)
    left_out = save_merged(tmp_path / "biased", model)
    assert left_out == "left out, as the model has none: logit_bias"


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_transformers_loads_it(kind, tmp_path, pictures):
    model = trained(HFCLIP(str(write_clip(tmp_path / "clip"))), ADAPTERS[kind]())
    want = model.score(pictures, TEXTS)
    save_merged(tmp_path / "merged", model)
    network = transformers.CLIPModel.from_pretrained(tmp_path / "merged").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "merged", backend="pil")
    images = [Image.open(path).convert("RGB") for path in pictures]
    inputs = words(TEXTS, padding=True, return_tensors="pt")
    inputs |= processor(images, return_tensors="pt")
    with torch.no_grad():
        got = network(**inputs).logits_per_image
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scored_by", ["matching", "contrast"])
def test_a_fusion_encoder_keeps_both_scores(scored_by, tmp_path, pictures):
    def fusion(folder):
        return Blip(str(folder)), FusionTuning(towers=True, contrast=True, scored_by=scored_by)

    model = trained(*fusion(write_blip(tmp_path / "blip")))
    want = model.score(pictures, TEXTS)
    line = save_merged(tmp_path / "merged", model)
    assert "logit_scale" in line  # BLIP has none
    backbone, adapter = fusion(tmp_path / "merged")
    adapter.attach(backbone)
    if scored_by == "contrast":
        adapter.contrast.log_scale.data.copy_(model.adapter.contrast.log_scale)
        adapter.contrast.bias.data.copy_(model.adapter.contrast.bias)
    got = Model(backbone, adapter).score(pictures, TEXTS)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


MODELS = {
    "open_clip": lambda folder: OpenClip(str(write_model(folder))),
    "clip": lambda folder: HFCLIP(str(write_clip(folder))),
    "siglip": lambda folder: SigLIP(str(write_siglip(folder))),
}


def embeddings(model, pictures):
    return torch.cat([model.encode_image(pictures), model.encode_text(TEXTS)])


@pytest.mark.parametrize("kind", MODELS)
def test_a_text_map_is_multiplied_into_the_projection(kind, tmp_path, pictures):
    model = trained(MODELS[kind](tmp_path / "model"), TextMap())
    want = embeddings(model, pictures)
    save_merged(tmp_path / "merged", model)
    got = embeddings(vlmtune.load(tmp_path / "merged", device="cpu"), pictures)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_the_scale_and_bias_of_the_library(tmp_path):
    siglip = trained(MODELS["siglip"](tmp_path / "siglip"), LoRA())
    bias = siglip.backbone.logit_bias
    assert bias != 0
    save_merged(tmp_path / "lora", siglip)
    network = transformers.SiglipModel.from_pretrained(tmp_path / "lora")
    assert network.logit_bias.item() == pytest.approx(bias)  # nothing trained it
    align = trained(Align(str(write_align(tmp_path / "align"))), FullFineTuning())
    align.adapter.log_scale.data.fill_(2.0)
    assert save_merged(tmp_path / "full", align) == ""
    network = transformers.AlignModel.from_pretrained(tmp_path / "full")
    assert network.temperature.item() == pytest.approx(math.exp(-2))


REFUSED = {
    "a probe": (LinearProbe, "adds weights of its own: use --format onnx, or --out instead"),
    "prompts": (ContextPrompts, "adds weights of its own: use --format onnx, or --out instead"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_adapter_that_the_library_could_not_compute_is_refused(kind, model_folder, tmp_path):
    make, message = REFUSED[kind]
    model = trained(OpenClip(str(model_folder)), make())
    with refused(f"{make.__name__}, which {message}"):
        save_merged(tmp_path / "merged", model)
    assert not (tmp_path / "merged").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with refused("holds "):
        save_merged(tmp_path / "full", model)


def test_the_command(model_folder, tmp_path, capsys, pictures):
    model = trained(OpenClip(str(model_folder)), LoRA())
    want = model.score(pictures, TEXTS)
    path = checkpoint(tmp_path / "last.ckpt", model.backbone, model.adapter)
    arguments = ["export", str(path), "--merged", str(tmp_path / "merged")]
    assert main(arguments) == 0, capsys.readouterr().err
    line = "load it with open_clip.create_model_and_transforms('local-dir:"
    assert line in capsys.readouterr().out
    got = vlmtune.load(tmp_path / "merged", device="cpu").score(pictures, TEXTS)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    command_refused(capsys, [*arguments, "--out", tmp_path / "other"], "got both")
