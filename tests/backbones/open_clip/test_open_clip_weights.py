"""Weights files of open_clip: they fit an architecture exactly, or are refused."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from open_clip import factory, pretrained

from tests.refusals import refused
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

QUICK = "Tiny-VL-quickgelu"
POOLED = FeatureSpec("pooled")
TEXTS = ["a red cube left of the blue sphere", "dog"]


def values(backbone):
    return backbone.encode_text(TEXTS, POOLED).values


def register(monkeypatch, name, **changes):
    config = json.loads(json.dumps(factory._MODEL_CONFIGS["Tiny-VL"]))
    for section, fields in changes.items():
        config[section] = {**config[section], **fields} if isinstance(fields, dict) else fields
    monkeypatch.setitem(factory._MODEL_CONFIGS, name, config)


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.safetensors"])
def test_every_weight_is_that_of_the_file(file, tiny_vl, name):
    backbone = OpenClip(QUICK, file(name))
    state = backbone.model.state_dict()
    assert state.keys() == tiny_vl.keys()
    assert all(state[key].equal(tiny_vl[key]) for key in state)
    assert backbone.weights_file == {
        "file": name,
        "sha256": hashlib.sha256(Path(file(name)).read_bytes()).hexdigest(),
        "architecture": QUICK,
    }
    assert backbone.title == f"{QUICK} ({name})"
    assert not backbone.random_weights


def test_half_precision_and_rows_of_one_number(file, tiny_vl):
    halves = {k: v.half() for k, v in tiny_vl.items()}
    path = file(**halves | {"logit_scale": tiny_vl["logit_scale"][None]})
    backbone = OpenClip(QUICK, path)
    found = backbone.model.state_dict()["visual.proj"]
    assert found.equal(tiny_vl["visual.proj"].half().float())
    assert backbone.logit_scale == pytest.approx(float(tiny_vl["logit_scale"].exp()))


def test_only_the_name_chooses_the_activation(file, monkeypatch, recwarn):
    quick = OpenClip(QUICK, file())
    assert not recwarn.list
    message = (
        "Tiny-VL computes with GELU, and epoch_5.pt .* from OpenAI's .* need Tiny-VL-quickgelu"
    )
    with pytest.warns(UserWarning, match=message):
        plain = OpenClip("Tiny-VL", file())
    assert not values(plain).equal(values(quick))
    register(monkeypatch, "Tiny-Only")  # of one activation
    recwarn.clear()
    OpenClip("Tiny-Only", file())
    assert not recwarn.list


OTHERS = [
    ("vision_cfg", "width", 32,
     r"got size 24 for visual.class_embedding, whose size is 32 \(\d+ of \d+ differ\): name"),
    ("text_cfg", "layers", 4, r"got none for transformer.resblocks.3.ln_1.weight, .* 16 \(12 "),
    ("text_cfg", "layers", 2, r"only the weights .*, got 12 more, first transformer.resblocks.2"),
    # open_clip would resize these two without a word.
    ("vision_cfg", "image_size", 48, "17 x 24 for visual.positional_embedding, .* 37 x 24"),
    ("text_cfg", "context_length", 64, "77 x 16 for positional_embedding, .* is 64 x 16"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "name", "value", "message"), OTHERS)
def test_another_architecture_is_named_by_its_first_difference(
    file, monkeypatch, section, name, value, message
):
    register(monkeypatch, "Tiny-Other", **{section: {name: value}})
    with refused(message):
        OpenClip("Tiny-Other", file())


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("ema.visual.proj", "got 1 more, first ema.visual.proj: save only the copy"),
        ("visual.conv1.lora_A", "first visual.conv1.lora_A: merge its LoRA layers"),
        ("decoder.weight", "first decoder.weight: name the architecture of these weights, or save"),
    ],
)
def test_weights_that_do_not_belong_are_refused(file, key, message):
    with refused(message):
        OpenClip(QUICK, file(**{key: torch.ones(2, 3)}))


def test_weights_that_are_missing_are_named_and_those_of_transformers_get_advice(file, tmp_path):
    with refused(r"got none for visual.proj, whose size is 24 x 16 \(1 of \d+ differ\)"):
        OpenClip(QUICK, file(drop=["visual.proj"]))
    path = tmp_path / "pytorch_model.bin"
    torch.save({"vision_model.embeddings.class_embedding": torch.ones(24)}, path)
    with refused("got none for .*: these are weights of transformers, so pass the hub id"):
        OpenClip(QUICK, str(path))


def test_a_bias_that_only_the_file_or_only_the_architecture_has(file, monkeypatch):
    path = file(logit_bias=torch.tensor([-10.5]))
    with pytest.warns(UserWarning, match="logit_bias -10.5, which Tiny-VL-quickgelu does not use"):
        biased = OpenClip(QUICK, path)
    assert biased.logit_bias == 0
    assert values(biased).equal(values(OpenClip(QUICK, file())))
    register(monkeypatch, "Tiny-Sigmoid", init_logit_bias=-10)
    with refused("got none for logit_bias, whose size is 1 "):
        OpenClip("Tiny-Sigmoid", file())
    assert OpenClip("Tiny-Sigmoid", file(logit_bias=torch.tensor([-9.0]))).logit_bias == -9


def test_what_openai_stores_is_no_weight_and_old_names_are_translated(file, recwarn, monkeypatch):
    sizes = {
        name: torch.tensor(77) for name in ("input_resolution", "context_length", "vocab_size")
    }
    assert values(OpenClip(QUICK, file(**sizes))).equal(values(OpenClip(QUICK, file())))
    assert not recwarn.list
    register(monkeypatch, "Tiny-Text", custom_text=True, quick_gelu=True)
    backbone = OpenClip("Tiny-Text", file())
    assert "text.positional_embedding" in backbone.model.state_dict()
    assert values(backbone).equal(values(OpenClip(QUICK, file())))


def test_images_are_prepared_as_all_published_weights_expect(file, monkeypatch):
    tag = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.4, 0.3), "interpolation": "bicubic"}
    tags = {"one": tag | {"resize_mode": "squash"}, "two": tag | {"resize_mode": "shortest"}}
    monkeypatch.setitem(pretrained._PRETRAINED, QUICK, tags)
    prepared = OpenClip(QUICK, file()).preprocessing
    assert (tuple(prepared["mean"]), tuple(prepared["std"])) == (tag["mean"], tag["std"])
    assert prepared["resize_mode"] == "shortest"  # the tags differ: the default
