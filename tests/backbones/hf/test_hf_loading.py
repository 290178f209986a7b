import io
import json
import os
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.backbones.hf_models import edit, write_clip, write_timm
from tests.backbones.kinds import KINDS, backbone_of
from tests.conftest import REVISION
from tests.refusals import refused
from vlmtune.backbones import HFCLIP, TimmImage
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec


@pytest.fixture
def path(tmp_path):
    return write_clip(tmp_path / "clip")


def fails(model, message, **arguments):
    with refused(message):
        HFCLIP(str(model), **arguments)


def test_a_revision_of_a_hub_id_and_the_fingerprint_of_the_tokenizer(hub, path):
    hub("someone/tiny-clip", path)
    got = HFCLIP("someone/tiny-clip", revision=REVISION)
    assert got.fingerprint == HFCLIP(str(path)).fingerprint
    fails("someone/tiny-clip", "revision|cached|find", revision="f" * 40)
    fails("someone/nothing", "a folder someone/nothing here.* no whole copy in")
    own = HFCLIP(str(path)).fingerprint
    text = (path / "tokenizer.json").read_text()
    for old, new in (("red", "swap"), ("blue", "red"), ("swap", "blue")):
        text = text.replace(f'"{old}":', f'"{new}":')
    (path / "tokenizer.json").write_text(text)
    assert HFCLIP(str(path)).fingerprint != own


@pytest.mark.parametrize("name", ["a/b/c", "", "org/", "x y/z"])
def test_what_is_no_model_is_told_in_one_line(name):
    fails(name, r"hub id \(org/repo\) or a folder")


def test_a_library_that_a_tokenizer_needs_is_to_be_installed(path, monkeypatch):
    def missing(*_, **__):
        raise ImportError("SiglipTokenizer requires the SentencePiece library")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", missing)
    fails(path, "SentencePiece library: install the library that it names")


def test_damaged_folders_are_told_in_one_line(path):
    weights, name = (path / "model.safetensors").read_bytes(), "model.safetensors"
    (path / name).write_bytes(weights[: len(weights) // 2])
    fails(path, "expected weights")
    (path / name).unlink()
    fails(path, "model.safetensors")
    (path / name).write_bytes(weights)
    config = (path / "config.json").read_text()
    (path / "config.json").write_text("{")
    fails(path, "expected weights")
    (path / "config.json").write_text(config)
    (path / "preprocessor_config.json").rename(path / "elsewhere")
    fails(path, "preprocessor|image processor")
    (path / "elsewhere").rename(path / "preprocessor_config.json")
    HFCLIP(str(path))
    (path / "config.json").unlink()
    fails(path, "a folder with config.json and weights")


@pytest.fixture
def change(path):
    """Returns a function that adds weights to the model, or replaces or removes them (None)."""

    def write(**weights):
        state = load_file(path / "model.safetensors") | weights
        state = {name: value for name, value in state.items() if value is not None}
        save_file(state, path / "model.safetensors", metadata={"format": "pt"})

    return write


def test_weights_that_are_missing_or_of_another_shape_are_not_made_up(path, change):
    lost = "text_model.encoder.layers.1.mlp.fc1.weight"
    change(**{lost: None})
    fails(path, f"all weights of .* got 1 missing keys, first {lost}")
    change(**{lost: torch.zeros(3, 3), "text_projection.weight": torch.zeros(3, 3)})
    fails(path, rf"all weights of .* got 2 mismatched keys, first {lost}")


def test_weights_that_are_not_finite_are_an_error_and_loading_is_quiet(path, change, capfd):
    capfd.readouterr()
    HFCLIP(str(path))
    assert capfd.readouterr() == ("", "")
    change(**{"visual_projection.weight": torch.full((16, 24), torch.nan)})
    fails(path, "finite weights, got NaN or infinity in 'visual_projection.weight'")


class Trap:
    """Unpickling it would make a folder."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_pickles_load_as_tensors_and_never_run(path, tmp_path):
    want = HFCLIP(str(path)).encode_text(["dog"], FeatureSpec("pooled")).values
    state = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save(state, path / "pytorch_model.bin")
    got = HFCLIP(str(path)).encode_text(["dog"], FeatureSpec("pooled")).values
    torch.testing.assert_close(got, want)
    torch.save({**state, "trap": Trap(tmp_path / "sprung")}, path / "pytorch_model.bin")
    with refused("expected weights") as caught:
        HFCLIP(str(path))
    assert not (tmp_path / "sprung").exists()
    # The library's advice, to load it with the code, is left out.
    assert "weights_only" not in str(caught.value)
    assert "mkdir" in str(caught.value)


AUTO = {
    "config.json": {"AutoConfig": "theirs.Theirs"},
    "tokenizer_config.json": {"AutoTokenizer": ["theirs.Theirs", None]},
    "preprocessor_config.json": {"AutoImageProcessor": "theirs.Theirs"},
}


@pytest.mark.parametrize("file", AUTO)
def test_code_of_the_author_never_runs_whatever_standard_input_says(
    file, path, tmp_path, monkeypatch
):
    (path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    unknown = {"model_type": "theirs"} if file == "config.json" else {}
    unknown |= {"image_processor_type": "Theirs"} if "pre" in file else {}
    edit(path, file, auto_map=AUTO[file], **unknown)
    if file == "tokenizer_config.json":  # a class of the library would be used in its stead
        edit(path, file, tokenizer_class="Theirs")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    with suppress(UserError):
        HFCLIP(str(path))
    assert not (tmp_path / "ran").exists()
    if file != "tokenizer_config.json":
        fails(path, "Python code of its author, which vlmtune never runs")


PROCESSOR = "preprocessor_config.json"
HUGE = {"text_config__max_position_embeddings": 10**6, "text_config__hidden_size": 4096}
SMALL = {"height": 24, "width": 24}
EDITED = [  # the model, what is changed in which of its files, and what is said
    *(("hf_clip", "config.json", {name: 10**7}, rf"{name.partition('__')[2]} of at most [\d,]+ in")
      for name in ("vision_config__num_hidden_layers", "text_config__hidden_size",
                   "vision_config__image_size", "text_config__max_position_embeddings")),
    ("hf_clip", "config.json", HUGE, "config that fits the weights of .* values for"),
    ("hf_clip", "config.json", {"text_config__eos_token_id": 5},
     r"end with the token the model pools \(id 5\)"),
    ("hf_clip", PROCESSOR, {"crop_size": {"height": 100_000, "width": 100_000}},
     "height of at most 4,096 .* got 100,000"),
    ("hf_clip", PROCESSOR, {"crop_size": SMALL}, r"image processor of one HFCLIP in .*24\*24"),
    ("hf_clip", "tokenizer_config.json", {"pad_token": None}, "does not have a padding token"),
    ("metaclip2", "tokenizer.json", {"post_processor": None},
     r"end with the token the model pools \(id 2\)"),
    ("siglip", "tokenizer.json", {"post_processor": None},
     r"one end token \(id 1\), .*, got \[2\] for 'a'"),
    ("siglip2_naflex", PROCESSOR, {"do_resize": False}, "expected do_resize true in .*, got false"),
    ("siglip2_naflex", PROCESSOR, {"patch_size": 16},
     "weights, tokenizer and image processor of one SigLIP2NaFlex"),
    ("blip", PROCESSOR, {"size": SMALL}, "the model takes 32 x 32"),  # refused, not cut
    *(("vilt", PROCESSOR, {name: False}, f"expected {name} true in .*, got false")
      for name in ("do_resize", "do_pad")),
    ("vilt", PROCESSOR, {"size": SMALL}, "image processor of one Vilt"),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "file", "values", "message"), EDITED)
def test_files_that_do_not_fit_are_refused(stem, file, values, message, tmp_path):
    edit(KINDS[stem].write(tmp_path / "model"), file, **values)
    with refused(message):
        backbone_of(stem, tmp_path / "model")


def test_sizes_of_timm_are_checked(tmp_path):
    path = write_timm(tmp_path / "vit")
    settings = json.loads((path / "config.json").read_text())
    for name in ("depth", "embed_dim", "img_size"):
        changed = settings | {"model_args": settings["model_args"] | {name: 10**7}}
        (path / "config.json").write_text(json.dumps(changed))
        with refused(f"{name} of at most"):
            TimmImage(str(path))


TABLE = "text_model.encoder.layers.0.self_attn.rotary_emb.inv_freq"  # old versions saved it


@pytest.mark.parametrize(
    "name", ["lora.foo", "vision_model.encoder.layers.3.mlp.fc1.bias", "mlm_head.bias", TABLE]
)
def test_weights_that_the_config_leaves_out_are_an_error_unless_of_another_task(name, path, change):
    change(**{name: torch.ones(2)})
    if name in ("mlm_head.bias", TABLE):
        HFCLIP(str(path))
    else:
        fails(path, f"got 1 more, first {name}: write the number of layers")
