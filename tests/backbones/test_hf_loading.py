import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.backbones.hf_models import edit, write_clip
from tests.conftest import REVISION
from tests.refusals import refused
from vlmtune import config
from vlmtune.backbones import hf_loading
from vlmtune.backbones.hf_clip import HFCLIP
from vlmtune.types import FeatureSpec


@pytest.fixture
def path(tmp_path):
    return write_clip(tmp_path / "clip")


def fails(model, message, **arguments):
    with refused(message):
        HFCLIP(str(model), **arguments)


def test_a_revision_of_a_hub_id(hub, path):
    hub("someone/tiny-clip", path)
    got = HFCLIP("someone/tiny-clip", revision=REVISION)
    assert got.fingerprint == HFCLIP(str(path)).fingerprint
    fails("someone/tiny-clip", "revision|cached|find", revision="f" * 40)
    fails("someone/nothing", "weights, tokenizer and image processor of someone/nothing.* network")


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "/no/such/folder", "", "org/", "x y/z"])
def test_what_is_no_model_is_told_in_one_line(name):
    fails(name, r"hub id \(org/repo\) or a folder")


def test_a_relative_folder_is_found_from_anywhere(path, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    assert HFCLIP("clip").embed_dim == 16
    monkeypatch.chdir("/")
    monkeypatch.setattr(config, "ROOT", tmp_path)
    (tmp_path / "checkpoints").symlink_to(path.parent)
    assert hf_loading.locate("checkpoints/clip") == str(path)


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
    fails(path, "has no config.json")


def test_weights_that_are_missing_are_not_made_up(path):
    state = load_file(path / "model.safetensors")
    lost = "text_model.encoder.layers.1.mlp.fc1.weight"
    del state[lost]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    fails(path, f"all weights of .* got 1 missing keys, first {lost}")


def test_weights_of_another_shape_are_refused(path):
    fails(edit(path, projection_dim=20), "expected (all )?weights")


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
    fails(path, "expected weights")
    assert not (tmp_path / "sprung").exists()


def test_loading_is_quiet(path, capfd):
    capfd.readouterr()
    HFCLIP(str(path))
    assert capfd.readouterr() == ("", "")


def test_tokenizers_without_padding_are_refused(path):
    fails(edit(path, "tokenizer_config.json", pad_token=None), "tokenizer with a padding token")


def test_the_fingerprint_knows_the_tokenizer(path):
    own = HFCLIP(str(path)).fingerprint
    text = (path / "tokenizer.json").read_text()
    for old, new in (("red", "swap"), ("blue", "red"), ("swap", "blue")):
        text = text.replace(f'"{old}":', f'"{new}":')
    (path / "tokenizer.json").write_text(text)
    assert HFCLIP(str(path)).fingerprint != own
