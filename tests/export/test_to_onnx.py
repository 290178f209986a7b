"""The graphs of onnxruntime embed images and texts as vlmtune does."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.backbones.hf_models import write_blip, write_bridgetower, write_flava, write_siglip
from tests.export.test_documents import run_example
from tests.export.test_merging import trained
from tests.model.checkpoints import checkpoint
from tests.refusals import refused
from tests.tiny import WORDS, write_model
from vlmtune.adapters.context_prompts import ContextPrompts
from vlmtune.adapters.deep_prompts import DeepPrompts
from vlmtune.adapters.ft_late import FTLate
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.adapters.fusion_tuning import FusionTuning
from vlmtune.adapters.grounded_vectors import GroundedVectors
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.lora import LoRA
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.text_map import TextMap
from vlmtune.adapters.word_prompts import WordPrompts
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones import Blip, BridgeTower, Flava, SigLIP
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.export.merging import save_merged

TEXTS = [f"A {WORDS[1]} {WORDS[4]}", "the dog", "a red cube " * 30]
SCENES = ["a red cube", "a blue sphere", "red " * 40]


def embedded(folder, images, texts, prepare=None):
    """Embeddings by onnxruntime, tokenizers and PIL; no torch, no vlmtune.

    `prepare` gives the pixel values of a model with preprocessing that `prepared` does not have.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)
    ids = np.array([text.ids for text in encoded])
    mask = np.array([text.attention_mask for text in encoded])
    session = onnxruntime.InferenceSession(folder / "text.onnx")
    (text,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    pixels = np.stack(
        [prepare(image) if prepare else prepared(image, settings) for image in images]
    )
    session = onnxruntime.InferenceSession(folder / "image.onnx")
    (image,) = session.run(None, {"pixel_values": pixels})
    return torch.from_numpy(image), torch.from_numpy(text)


def prepared(image, settings):
    """Pixel values from the fields of a preprocessor_config.json."""
    size = settings["size"]
    short = size.get("shortest_edge")
    if short:
        scale = short / min(image.size)
        image = image.resize([int(side * scale) for side in image.size], settings["resample"])
    else:
        image = image.resize((size["width"], size["height"]), settings["resample"])
    if settings.get("do_center_crop"):
        height, width = settings["crop_size"]["height"], settings["crop_size"]["width"]
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    values = np.asarray(image, np.float32) * np.float32(settings["rescale_factor"])
    values = (values - np.float32(settings["image_mean"])) / np.float32(settings["image_std"])
    return values.transpose(2, 0, 1).astype(np.float32)


def small(folder, layers=1):
    sizes = {"layers": layers}
    return OpenClip(str(write_model(folder, vision=sizes, text=sizes)))


# Each kind of tower, and of adapters those that do more than multiply embeddings. Deep prompts and
# FT-Late need a second layer.
MODELS = {
    "lora": (small, lambda: LoRA(targets=["query", "mlp"])),
    "context_prompts": (small, lambda: ContextPrompts(2)),
    "deep_prompts": (lambda folder: small(folder, 2), lambda: DeepPrompts(2)),
    "ft_late": (lambda folder: small(folder, 2), lambda: FTLate(layers=1, heads=2, hidden=1)),
    "text_map": (lambda folder: SigLIP(str(write_siglip(folder))), TextMap),
    "word_prompts": (
        lambda folder: Blip(str(write_blip(folder))),
        lambda: WordPrompts(["red", WORDS[1]]),
    ),
    "full_finetuning": (
        lambda folder: BridgeTower(str(write_bridgetower(folder))),
        FullFineTuning,
    ),
    "grounded_vectors": (
        lambda folder: small(folder, 2),
        lambda: GroundedVectors(GroundedWords(heads=2, frozen_weight=2.0)),
    ),
    "fusion_tuning": (
        lambda folder: Flava(str(write_flava(folder))),
        lambda: FusionTuning(towers=True, contrast=True, scored_by="contrast"),
    ),
    "scenes": (lambda _: OpenClip("checkpoints/scenes-clip"), ZeroShot),
}
# Another process: the exporter cannot read code under the checks of shapes that tests run with.
PROGRAM = """
import sys
from vlmtune.cli.main import main
end = ("--format", "onnx")
sys.exit(sum([main(["export", path + ".ckpt", "--merged", path, *end]) for path in sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The trained models and the folders of their graphs, as the command writes them."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    folder, models = tmp_path_factory.mktemp("onnx"), {}
    for name, (backbone, adapter) in MODELS.items():
        models[name] = trained(backbone(folder / f"{name}-model"), adapter())
        checkpoint(folder / f"{name}.ckpt", models[name].backbone, models[name].adapter)
    paths = [str(folder / name) for name in MODELS]
    command = [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, *paths]
    process = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "left out" not in process.stdout
    return {name: (model, folder / name) for name, model in models.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_embeds_as_the_model(name, exported, images):
    model, folder = exported[name]
    texts = SCENES if name == "scenes" else TEXTS
    want = model.encode_image(images), model.encode_text(texts)
    # BridgeTower cuts sides to multiples of 32.
    prepare = model.backbone.preprocess if isinstance(model.backbone, BridgeTower) else None
    got = embedded(folder, images, texts, prepare)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=1e-5)
    alone = embedded(folder, images[2:], texts[1:2], prepare)
    torch.testing.assert_close(alone[0], want[0][2:], rtol=0, atol=1e-5)
    torch.testing.assert_close(alone[1], want[1][1:2], rtol=0, atol=1e-5)
    values = json.loads((folder / "scores.json").read_text())
    scores = values["scale"] * got[0] @ got[1].T + values["bias"]
    torch.testing.assert_close(scores, model.score(images, texts), rtol=1e-4, atol=1e-3)
    assert not torch.allclose(want[0][0], want[0][1], atol=1e-3)
    assert not torch.allclose(want[1][0], want[1][1], atol=1e-3)
    names = ["image.onnx", "preprocessor_config.json", "scores.json", "text.onnx", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.slow
def test_the_example_of_the_docs_runs(exported, tmp_path, monkeypatch):
    model, folder = exported["lora"]
    (tmp_path / "FOLDER").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    texts = torch.from_numpy(run_example("onnx")["texts"])
    torch.testing.assert_close(texts, model.encode_text("a red cube"), rtol=0, atol=1e-5)


def test_what_has_no_graphs_is_refused(model_folder, tmp_path, monkeypatch):
    with refused("adapter with embeddings, got MMAdapter, which scores image and text jointly"):
        joint = trained(OpenClip(str(model_folder)), MMAdapter(heads=2, hidden=1))
        save_merged(tmp_path / "onnx", joint, "onnx")
    half = trained(OpenClip(str(model_folder), precision="bf16"), LinearProbe())
    with refused("expected float32 weights for onnx, got torch.bfloat16"):
        save_merged(tmp_path / "onnx", half, "onnx")
    model = trained(OpenClip(str(model_folder)), LinearProbe())
    for package in ("onnx", "onnxscript", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with refused(rf"package {package} .* pip install 'vlmtune\[onnx\]'"):
                save_merged(tmp_path / "onnx", model, "onnx")
    model.backbone.text_tower = None
    with refused("backbone whose text tower runs block by block"):
        save_merged(tmp_path / "onnx", model, "onnx")
    assert not (tmp_path / "onnx").exists()
