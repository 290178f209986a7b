"""LoRA in PEFT's format scores as vlmtune does, and adapters of PEFT score as PEFT does."""

import json

import pytest
import torch
import transformers

import vlmtune
from tests.backbones.hf_models import write_clip, write_flava, write_siglip
from tests.conftest import REVISION
from tests.export.test_documents import run_example
from tests.export.test_merging import trained
from tests.model.checkpoints import checkpoint
from tests.refusals import refused
from tests.tiny import WORDS
from vlmtune.adapters import ContextPrompts, LoRA
from vlmtune.backbones import HFCLIP, Flava, OpenClip, SigLIP
from vlmtune.cli.main import main
from vlmtune.config import instantiate
from vlmtune.export import save_export
from vlmtune.model.resolving import backbone_spec

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
TEXTS = [f"a {WORDS[1]} {WORDS[4]}", "the dog"]
MODELS = {
    "clip": (HFCLIP, write_clip, {"targets": ["query", "value", "out", "mlp"]}),
    "siglip": (SigLIP, write_siglip, {"rank": 2, "alpha": 3.0, "image": False}),
}


@pytest.fixture
def peft():
    return pytest.importorskip("peft")


def scores(network, folder, images):
    """The scores of a model of transformers, with what its folder holds beside the weights."""
    words = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokens = words(TEXTS, padding="max_length", max_length=12, return_tensors="pt")
    with torch.no_grad():
        return network(tokens["input_ids"], **processor(images, return_tensors="pt"))[0]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_peft_loads_an_export_and_vlmtune_reads_it_back(kind, peft, tmp_path, images, monkeypatch):
    backbone, write, options = MODELS[kind]
    base, folder = str(write(tmp_path / "base")), tmp_path / "exports/peft"
    model = trained(backbone(base), LoRA(**options))
    file = checkpoint(tmp_path / "a.ckpt", model.backbone, model.adapter)
    want = model.score(images, TEXTS)
    assert main(["export", str(file), "--out", str(folder), "--format", "peft"]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the name could be one of the hub
    network = run_example("peft")["model"].eval()
    # SigLIP of transformers adds the bias of its pre-training to every score.
    bias = getattr(network, "logit_bias", 0)
    close(scores(network, base, images) - bias, want)
    with network.disable_adapter():
        assert not torch.allclose(scores(network, base, images), want, atol=1e-2)
    close(vlmtune.load(folder, device="cpu").score(images, TEXTS), want)


def test_an_adapter_of_peft_is_measured_and_trained_further(peft, tmp_path, images, hub):
    base, folder = write_clip(tmp_path / "base"), tmp_path / "peft"
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "fc1"], use_rslora=True, init_lora_weights=False
    )
    network = peft.get_peft_model(transformers.CLIPModel.from_pretrained(base), config).eval()
    network.save_pretrained(folder)
    want = scores(network, base, images)
    close(vlmtune.load(folder, device="cpu").score(images, TEXTS), want)
    hub("someone/lora", folder)
    model = vlmtune.load("someone/lora", revision=REVISION, device="cpu")
    assert model.backbone.init_args["peft"] == f"someone/lora@{REVISION}"
    close(model.score(images, TEXTS), want)
    moved = base.rename(tmp_path / "moved")
    close(vlmtune.load(folder, str(moved), device="cpu").score(images, TEXTS), want)
    with refused("a folder gone/base here.* no whole copy in"):
        vlmtune.load(folder, "gone/base", device="cpu")
    moved.rename(base)
    model = trained(instantiate(backbone_spec(str(folder)), HFCLIP), LoRA())
    save_export(tmp_path / "further", model.backbone, model.adapter, provenance={})
    got = vlmtune.load(tmp_path / "further", device="cpu")
    assert got.score(images, TEXTS).equal(model.score(images, TEXTS))


def test_packed_projections_of_open_clip(peft, tmp_path, model_folder, images):
    model = trained(OpenClip(str(model_folder)), LoRA(rank=2, targets=["query", "value", "mlp"]))
    save_export(tmp_path / "peft", model.backbone, model.adapter, provenance={}, peft=True)
    base = OpenClip(str(model_folder))
    network = peft.PeftModel.from_pretrained(base.model, tmp_path / "peft").eval()
    ids = base.tokenizer(TEXTS)[0]
    pixels = torch.stack([base.preprocess(image) for image in images])
    with torch.no_grad():
        close(network.encode_image(pixels, normalize=True), model.encode_image(images))
        close(network.encode_text(ids, normalize=True), model.encode_text(TEXTS))
    want = model.score(images, TEXTS)
    close(vlmtune.load(tmp_path / "peft", device="cpu").score(images, TEXTS), want)
    assert "open_clip.create_model" in (tmp_path / "peft/README.md").read_text()


def test_weights_of_open_clip_are_named(peft, tiny_vl, tmp_path, images):
    model = trained(OpenClip("Tiny-VL", "random"), LoRA(targets=["key", "mlp"]))
    save_export(tmp_path / "peft", model.backbone, model.adapter, provenance={}, peft=True)
    config = peft.PeftConfig.from_pretrained(tmp_path / "peft")
    assert config.base_model_name_or_path == "Tiny-VL:random"
    want = model.score(images, TEXTS)
    close(vlmtune.load(tmp_path / "peft", device="cpu").score(images, TEXTS), want)
    # A folder that PEFT wrote names no model of open_clip.
    config.base_model_name_or_path = None
    config.save_pretrained(tmp_path / "peft")
    with refused("expected base_model_name_or_path .* name the base model with --pretrained"):
        vlmtune.load(tmp_path / "peft", device="cpu")
    named = vlmtune.load(tmp_path / "peft", "Tiny-VL:random", device="cpu")
    close(named.score(images, TEXTS), want)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (lambda: LoRA(targets=["out"]), "expected no target out in visual.transformer.resblocks.0"),
        (ContextPrompts, "expected LoRA on .* got ContextPrompts"),
    ],
)
def test_what_peft_cannot_hold(adapter, message, tmp_path, model_folder):
    model = trained(OpenClip(str(model_folder)), adapter())
    with refused(message):
        save_export(tmp_path / "peft", model.backbone, model.adapter, provenance={}, peft=True)
    assert not (tmp_path / "peft").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: HFCLIP(str(write_clip(path)), image_size=48),
            "a backbone with image_size 48",
        ),
        (lambda path: Flava(str(write_flava(path))), "FlavaNetwork, a class of vlmtune"),
        (lambda _: OpenClip("Tiny-VL", "random", image_size=64), "image_size 64"),
    ],
)
def test_a_base_model_that_peft_would_load_otherwise_is_refused(make, message, tiny_vl, tmp_path):
    model = trained(make(tmp_path / "base"), LoRA())
    with refused(message):
        save_export(tmp_path / "peft", model.backbone, model.adapter, provenance={}, peft=True)


def test_an_adapter_that_fits_in_part_is_refused(peft, tmp_path):
    model = trained(HFCLIP(str(write_clip(tmp_path / "base"))), LoRA())
    save_export(tmp_path / "peft", model.backbone, model.adapter, provenance={}, peft=True)
    file = tmp_path / "peft/adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"target_modules": config["target_modules"][1:]}))
    with refused("2 weights that are missing or unused"):
        vlmtune.load(tmp_path / "peft", device="cpu")
