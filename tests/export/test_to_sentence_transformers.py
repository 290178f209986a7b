"""sentence-transformers encodes a merged folder as vlmtune encodes with the trained model."""

import sys

import pytest
import torch

from tests.backbones.hf_models import write_blip, write_clip, write_siglip
from tests.export.test_merging import trained
from tests.model.checkpoints import checkpoint
from tests.refusals import command_refused, refused
from tests.tiny import WORDS, write_model
from vlmtune.adapters import FullFineTuning, LoRA
from vlmtune.backbones import HFCLIP, Blip, OpenClip, SigLIP
from vlmtune.cli.main import main
from vlmtune.export.clip_twin import clip_twin
from vlmtune.export.hf_processing import hf_image_processor, hf_tokenizer
from vlmtune.export.merging import save_merged

FORM = "sentence-transformers"
TEXTS = [f"A {WORDS[1]} {WORDS[4]}", "the dog", "a red cube left of the blue sphere"]


@pytest.fixture
def library():
    return pytest.importorskip("sentence_transformers")


def clip_of_open_clip(folder, quick_gelu):
    return OpenClip(str(write_model(folder, vocabulary=False, quick_gelu=quick_gelu)))


BACKBONES = {
    "clip": lambda folder: HFCLIP(str(write_clip(folder))),
    "siglip": lambda folder: SigLIP(str(write_siglip(folder))),
    "open_clip": lambda folder: clip_of_open_clip(folder, False),
}


@pytest.mark.parametrize("kind", BACKBONES)
def test_it_encodes_images_and_texts(kind, library, tmp_path, images):
    model = trained(BACKBONES[kind](tmp_path / "model"), LoRA(targets=["query", "mlp"]))
    want = model.encode_image(images), model.encode_text(TEXTS)
    assert save_merged(tmp_path / "merged", model, FORM) == ""
    made = library.SentenceTransformer(
        str(tmp_path / "merged"), device="cpu", processor_kwargs={"backend": "pil"}
    )
    got = [torch.from_numpy(made.encode(items)) for items in (images, TEXTS)]
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=1e-5)
    assert made.similarity_fn_name == "cosine"


def test_resizing_by_torchvision_changes_little(library, tmp_path, images):
    model = trained(HFCLIP(str(write_clip(tmp_path / "model"))), FullFineTuning())
    want = model.encode_image(images)
    save_merged(tmp_path / "merged", model, FORM)
    got = library.SentenceTransformer(str(tmp_path / "merged"), device="cpu").encode(images)
    assert torch.from_numpy(got).mul(want).sum(dim=1).min() > 0.999


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_the_twin_of_a_clip_computes_the_same(quick_gelu, tmp_path, images):
    backbone = clip_of_open_clip(tmp_path / "model", quick_gelu)
    tokenizer, processor = hf_tokenizer(backbone), hf_image_processor(backbone)
    twin = clip_twin(backbone, tokenizer)
    assert twin.config.text_config.hidden_act == ("quick_gelu" if quick_gelu else "gelu")
    ids = tokenizer(TEXTS, padding=True, return_tensors="pt")
    pixels = processor(images, return_tensors="pt")
    assert pixels["pixel_values"].equal(torch.stack([backbone.preprocess(x) for x in images]))
    with torch.no_grad():
        want = backbone.model(pixels["pixel_values"], backbone.tokenizer(TEXTS)[0])
        got = twin(**ids, **pixels)
    torch.testing.assert_close(got.image_embeds, want[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(got.text_embeds, want[1], rtol=0, atol=1e-5)
    assert got.logits_per_image.allclose(want[2] * want[0] @ want[1].T, atol=1e-4)


def test_captions_become_the_same_tokens(clip_folder, model_folder):
    backbone = OpenClip(str(clip_folder))
    tokenizer = hf_tokenizer(backbone)
    captions = ["A man's DOG, 12 cats!", "  two   spaces\n", "naïve café – 北京 🙂", "word " * 100]
    captions += ["a man\u2019s dog, \u201ca red\u201d cube"]
    captions += ["it's they're I'd", "a_b-c (d)", "don't!!!", "<start_of_text>"[1:-1]]
    ids, mask = backbone.tokenizer(captions)
    got = tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt")
    assert got["attention_mask"].bool().equal(mask)
    assert got["input_ids"][mask].equal(ids[mask])
    # Of a vocabulary of words.
    backbone = OpenClip(str(model_folder))
    tokenizer = hf_tokenizer(backbone)
    captions = ["A red CUBE, left of the dog.", "dog", "red " * 100]
    ids, mask = backbone.tokenizer(captions)
    got = tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt")
    assert got["input_ids"].equal(ids)
    assert got["attention_mask"].bool().equal(mask)
    with pytest.raises(Exception, match="vocabulary"):
        tokenizer(["a violet cube"])


@pytest.mark.parametrize(
    "changes",
    [
        {"vision": {"pool_type": "avg"}},
        {"vision": {"ls_init_value": 0.1}},
        {"text": {"no_causal_mask": True}},
        {"text": {"proj_type": "none"}},
    ],
)
def test_a_clip_without_a_twin_is_refused(changes, tmp_path, library):
    folder = write_model(tmp_path / "model", vocabulary=False, **changes)
    model = trained(OpenClip(str(folder)), FullFineTuning())
    with refused("transformers.CLIPModel computes too .* use --merged without --format"):
        save_merged(tmp_path / "merged", model, FORM)
    assert not (tmp_path / "merged").exists()


def test_what_cannot_be_encoded_is_refused(tmp_path, model_folder, monkeypatch):
    blip = trained(Blip(str(write_blip(tmp_path / "blip"))), LoRA())
    with refused("HFCLIP, SigLIP or a CLIP of open_clip for sentence-transformers, got Blip"):
        save_merged(tmp_path / "merged", blip, FORM)
    half = trained(OpenClip(str(model_folder), precision="bf16"), LoRA())
    with refused("expected float32 weights"):
        save_merged(tmp_path / "merged", half, FORM)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    model = trained(OpenClip(str(model_folder)), LoRA())
    with refused(r"not installed: pip install 'vlmtune\[sentence-transformers\]'"):
        save_merged(tmp_path / "merged", model, FORM)


def test_the_command(library, tmp_path, capsys):
    model = trained(HFCLIP(str(write_clip(tmp_path / "clip"))), LoRA())
    want = model.encode_text(TEXTS)
    path = checkpoint(tmp_path / "last.ckpt", model.backbone, model.adapter)
    arguments = ["export", str(path), "--format", FORM]
    command_refused(capsys, arguments, "expected --merged FOLDER with --format")
    assert main([*arguments, "--merged", str(tmp_path / "merged")]) == 0
    assert "merged: a checkpoint of sentence-transformers; load it with" in capsys.readouterr().out
    got = library.SentenceTransformer(str(tmp_path / "merged"), device="cpu").encode(TEXTS)
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=0, atol=1e-5)
