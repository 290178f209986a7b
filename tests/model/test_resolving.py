"""What `vlmtune.load` takes; names of the hub are of a cache laid out as the hub's, no network."""

import io
import json
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml
from huggingface_hub.errors import RepositoryNotFoundError
from PIL import Image
from safetensors.torch import save_file

import vlmtune
from tests.backbones import hf_models
from tests.backbones.hf_models import edit
from tests.backbones.kinds import KINDS, PLUGINS
from tests.model.checkpoints import checkpoint
from tests.refusals import command_refused, refused
from tests.tiny import WORDS
from vlmtune.adapters import LinearProbe, Matching, ZeroShot
from vlmtune.backbones import HFCLIP, OpenClip
from vlmtune.backbones.advice import supported_types
from vlmtune.cli.main import main
from vlmtune.export import save_export
from vlmtune.model import check_checkpoint
from vlmtune.types import ImageRef

TEXTS = [f"a {WORDS[1]} {WORDS[4]}", "dog"]
OF_HUGGING_FACE = [stem for stem in KINDS if stem not in ("open_clip", "timm_image")]


@pytest.mark.parametrize("stem", OF_HUGGING_FACE)
def test_a_folder_or_a_hub_id_is_loaded_by_its_type(stem, tmp_path, hub, pictures):
    folder = KINDS[stem].write(tmp_path / stem)
    spec = yaml.safe_load((PLUGINS / f"{stem}.yaml").read_text())
    hub(f"someone/{stem}", folder)
    model = vlmtune.load(folder, device="cpu")
    assert model.backbone.spec()["class_path"] == spec["class_path"]
    # Without embeddings the fusion scores.
    assert type(model.adapter) is (Matching if KINDS[stem].scores is None else ZeroShot)
    scores = model.score(pictures, TEXTS)
    assert scores.shape == (3, 2)
    again = vlmtune.load(f"someone/{stem}", device="cpu").score(pictures, TEXTS)
    assert again.equal(scores)


def test_the_folder_of_a_run_and_a_foreign_checkpoint_get_advice(tmp_path):
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    with refused(f"the folder of a run: name one of its checkpoints, such as {last}"):
        vlmtune.load(tmp_path / "run")
    with refused(r"name a whole file, such as checkpoints/last\.ckpt in the folder of a run"):
        check_checkpoint(tmp_path / "run")
    torch.save({"state_dict": {}}, tmp_path / "epoch_1.ckpt")
    with refused("got nothing at vlmtune: .* --model FILE --architecture NAME"):
        vlmtune.load(tmp_path / "epoch_1.ckpt")


def test_a_type_that_is_not_supported(tmp_path, hub, capsys):
    folder = edit(hf_models.write_clip(tmp_path / "other"), model_type="qwen2_vl")
    hub("someone/other", folder)
    types = ", ".join(supported_types())
    assert len(supported_types()) == len(OF_HUGGING_FACE)
    listed = rf"supported type \({types}\), got .* qwen2_vl"
    for name in (str(folder), "someone/other"):
        with refused(listed):
            vlmtune.load(name)
    score = ["score", folder, "a.png", "--text", "a"]
    command_refused(capsys, score, "of a supported type (align, blip, blip-2, bridgetower, clip, ")


@pytest.mark.parametrize(
    ("write", "kind", "right"),
    [
        (hf_models.write_siglip, "siglip", "siglip.SigLIP"),
        (hf_models.write_siglip2_naflex, "siglip2", "siglip2_naflex.SigLIP2NaFlex"),
        (hf_models.write_metaclip2, "metaclip_2", "metaclip2.MetaCLIP2"),
    ],
)
def test_a_class_of_another_type_names_the_right_one(write, kind, right, tmp_path):
    with refused(rf"type clip, got .* of type {kind} \(.*\): use vlmtune.backbones.hf.{right}$"):
        HFCLIP(str(write(tmp_path / "model")))


def test_a_repository_of_open_clip_goes_to_open_clip(model_folder, hub, pictures):
    hub("someone/tiny", model_folder)
    want = vlmtune.load(model_folder, device="cpu").score(pictures, TEXTS)
    assert vlmtune.load("someone/tiny", device="cpu").score(pictures, TEXTS).equal(want)


def test_options(model_folder, exported_probe, tiny_vl):
    half = vlmtune.load(model_folder, device="cpu", precision="bf16", batch_size=2)
    assert half.backbone.spec()["init_args"]["precision"] == "bf16"
    assert half.scorer().batch_size == 2
    assert half.device.type == "cpu"
    with refused("no precision"):
        vlmtune.load(exported_probe, precision="bf16")
    name = "Tiny-VL"
    with refused("pretrained weights for Tiny-VL, got none"):
        vlmtune.load(name)
    made = vlmtune.load(name, "random", device="cpu")
    want = "Model(ZeroShot on OpenClip 'Tiny-VL (random weights)', 0 trained parameters, cpu)"
    assert repr(made) == want


@pytest.fixture
def exported_probe(tmp_path, model_folder):
    backbone, adapter = OpenClip(str(model_folder)), LinearProbe()
    adapter.attach(backbone)
    save_export(tmp_path / "probe", backbone, adapter, provenance={})
    return tmp_path / "probe"


def test_images_of_every_kind_score_alike(model_folder, pictures):
    model = vlmtune.load(model_folder, device="cpu")
    opened = [Image.open(path).convert("RGB") for path in pictures]
    want = model.score(pictures, TEXTS)
    arrays = [np.array(image) for image in opened]
    tensors = [torch.from_numpy(array).movedim(-1, 0) for array in arrays]
    buffer = io.BytesIO()
    opened[0].save(buffer, "PNG")
    kinds = {
        "arrays": arrays,
        "tensors": tensors,
        "a batch of arrays": np.stack(arrays),
        "a batch of tensors": torch.stack(tensors),
        "fractions": [array.astype(np.float32) / 255 for array in arrays],
        "fractions between": [np.minimum((array + 0.4) / 255, 1) for array in arrays],
        "mixed": [buffer.getvalue(), arrays[1], str(pictures[2])],
    }
    for kind, images in kinds.items():
        assert model.score(images, TEXTS).equal(want), kind
    references = [ImageRef(path) for path in pictures]
    (tall,) = model.score(ImageRef(pictures[0], (0, 0, 1, 4)), TEXTS)
    assert model.score(references, TEXTS).equal(want)
    assert not tall.equal(want[0])
    # Bytes are read as their file is: upright, for one.
    turned = Image.Exif()
    turned[0x0112] = 6
    opened[0].save(pictures[0].with_name("turned.jpg"), exif=turned)
    file = pictures[0].with_name("turned.jpg")
    assert model.score(file.read_bytes(), TEXTS).equal(model.score(file, TEXTS))
    pixels = torch.stack([model.preprocess(image) for image in opened])
    assert pixels.shape[0] == len(opened)
    model.to("cpu")
    cosines = model.similarity(model.encode_image(opened), model.encode_text(TEXTS))
    torch.testing.assert_close(cosines * model.backbone.logit_scale, want)
    grey = np.asarray(opened[0].convert("L"))
    assert model.score(grey, TEXTS).equal(model.score(opened[0].convert("L"), TEXTS))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"no picture", "expected an image in bytes"),
        (np.zeros((3, 4, 5), np.uint8), r"uint8 of shape \(3, 4, 5\)"),
        (np.full((4, 4, 3), -1.5, np.float32), "its range -1.5 to -1.5: undo the normalisation"),
        ("checkpoints", "an image in checkpoints, got Is a directory"),
        (np.zeros((0, 4, 3), np.uint8), r"shape \(0, 4, 3\)"),
    ],
)
def test_what_is_no_image(model_folder, image, message):
    with refused(message):
        vlmtune.load(model_folder, device="cpu").score([image], TEXTS)


def test_a_weights_file_of_a_named_architecture(tiny_vl, tmp_path, pictures, recwarn):
    file = tmp_path / "negclip.pt"
    torch.save({"epoch": 5, "state_dict": tiny_vl}, file)
    model = vlmtune.load(file, architecture="Tiny-VL-quickgelu", device="cpu")
    want = vlmtune.load("Tiny-VL-quickgelu", str(file), device="cpu").score(pictures, TEXTS)
    assert model.score(pictures, TEXTS).equal(want)
    tagged = vlmtune.load(f"Tiny-VL-quickgelu:{file}", device="cpu")
    assert tagged.score(pictures, TEXTS).equal(want)
    assert not recwarn.list
    assert "OpenClip 'Tiny-VL-quickgelu (negclip.pt)'" in repr(model)


def test_a_weights_file_and_its_architecture_come_together(tiny_vl, tmp_path, model_folder):
    file = tmp_path / "epoch_1.safetensors"
    save_file(tiny_vl, file)
    with refused("got none: write ARCHITECTURE:.*, for example ViT-B-32-quickgelu"):
        vlmtune.load(file)
    with refused("no pretrained for .*, got 'openai'"):
        vlmtune.load(file, "openai", architecture="Tiny-VL")
    for other in (model_folder, "ViT-B-32", tmp_path / "none.pt"):
        with refused("a weights file for Tiny-VL, which has no tags|the weights file none.pt in"):
            vlmtune.load(other, architecture="Tiny-VL")
    with refused("did you mean .*Tiny-VL"):
        vlmtune.load(file, architecture="Tiny-LV")
    for missing in ("epoch_1.pt", "runs/last.ckpt", tmp_path / "model.yaml", tmp_path / "export"):
        with refused(f"expected a model in {missing}, got no such file: check the spelling"):
            vlmtune.load(missing)


def test_an_export_on_a_weights_file_loads_from_another_directory(
    tiny_vl, tmp_path, pictures, monkeypatch, capsys
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    torch.save({"state_dict": tiny_vl}, "negclip.pt")
    backbone, adapter = OpenClip("Tiny-VL-quickgelu", "negclip.pt"), LinearProbe()
    adapter.attach(backbone)
    path = checkpoint(tmp_path / "last.ckpt", backbone, adapter)
    assert main(["export", str(path), "--out", str(tmp_path / "mine")]) == 0, capsys.readouterr()
    want = vlmtune.load(tmp_path / "mine", device="cpu").score(pictures, TEXTS)
    monkeypatch.chdir(tmp_path / "there")
    with refused("expected the weights file negclip.pt in .*there, got no such file: copy it"):
        vlmtune.load(tmp_path / "mine")
    moved = str(tmp_path / "here/negclip.pt")
    assert vlmtune.load(tmp_path / "mine", moved, device="cpu").score(pictures, TEXTS).equal(want)
    # So does the checkpoint, and its export.
    assert vlmtune.load(path, moved, device="cpu").score(pictures, TEXTS).equal(want)
    again = ["export", str(path), "--pretrained", moved, "--out", str(tmp_path / "again")]
    assert main(again) == 0, capsys.readouterr()
    torch.save({name: value + 1 for name, value in tiny_vl.items()}, "other.pt")
    with refused("got other weights or preprocessing"):
        vlmtune.load(tmp_path / "mine", "other.pt")


def test_a_checkpoint_whose_base_folder_has_moved(
    model_folder, tmp_path, pictures, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_folder, "base-clip")
    backbone, adapter = OpenClip("base-clip"), LinearProbe()
    adapter.attach(backbone)
    path = checkpoint(tmp_path / "last.ckpt", backbone, adapter)
    want = vlmtune.load(path, device="cpu").score(pictures, TEXTS)
    Path("base-clip").rename("moved-clip")
    line = "if it is a folder that has moved, name it with --pretrained FOLDER"
    command_refused(capsys, ["export", path, "--out", "mine"], line)
    assert vlmtune.load(path, "moved-clip", device="cpu").score(pictures, TEXTS).equal(want)


def test_a_shipped_export_is_found_from_any_folder(tmp_path, monkeypatch, pictures):
    monkeypatch.chdir(tmp_path)
    assert vlmtune.load("checkpoints/scenes-clip").score(pictures, ["red cube"]).shape == (3, 1)
    model = vlmtune.load("checkpoints/scenes-grounded-words", device="cpu")
    assert type(model.adapter).__name__ == "GroundedWords"
    (tmp_path / "checkpoints/scenes-grounded-words").mkdir(parents=True)  # one's own comes first
    with refused("scenes-grounded-words"):
        vlmtune.load("checkpoints/scenes-grounded-words")


def test_a_weights_file_is_merged_as_it_is_evaluated(tiny_vl, tmp_path, pictures, capsys):
    """The folder needs neither the file nor the built-in name."""
    file, out = tmp_path / "negclip.pt", tmp_path / "merged"
    torch.save({"state_dict": tiny_vl}, file)
    named = ["--model", str(file), "--architecture", "Tiny-VL-quickgelu"]
    assert main(["export", *named, "--merged", str(out)]) == 0, capsys.readouterr()
    want = vlmtune.load(file, architecture="Tiny-VL-quickgelu", device="cpu")
    file.unlink()
    got = vlmtune.load(out, device="cpu")
    torch.testing.assert_close(got.score(pictures, TEXTS), want.score(pictures, TEXTS))
    assert got.backbone.model.visual.transformer.resblocks[0].mlp.gelu.__class__.__name__ == (
        "QuickGELU"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--merged", "x"], "expected a checkpoint or --model, got neither"),
        (["a.ckpt", "--model", "b.pt", "--merged", "x"], "got a.ckpt and b.pt: give one"),
        (["a.pt", "--architecture", "ViT-B-32", "--merged", "x"], "write --model a.pt"),
        (
            ["--model", "a.pt", "--out", "x"],
            "expected --merged FOLDER, --vectors or --image-size with --model a.pt",
        ),
        (["--model", "a.pt", "--merged", "x"], "a.pt"),
        (["published:nobody", "--merged", "x"], "expected the name of published weights"),
    ],
)
def test_what_export_takes(arguments, message, capsys):
    (_,) = command_refused(capsys, ["export", *arguments], message)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_told_in_one_line(device, model_folder):
    with refused(f"expected a device of this machine, got '{device}'"):
        vlmtune.load(model_folder, device=device)


def test_a_repository_without_an_export_gets_advice(tmp_path, hub):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({}))
    hub("someone/other", tmp_path / "other")
    with refused("'someone/other' without adapter_config.json, config.json with a model_type, or"):
        vlmtune.load("someone/other")


def test_an_unavailable_repository_is_one_line(hub, monkeypatch):
    with refused("a folder someone/absent here.* no whole copy in"):
        vlmtune.load("someone/absent")

    def refuse(*_, **__):
        raise RepositoryNotFoundError("404\nnot found", response=FakeResponse())

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with refused("check the name, the revision and the network"):
        vlmtune.load("someone/private")
    for name in ("no-such-folder", "a/b/c"):
        with refused(f"hf-hub:org/repo or a folder .*, got '{name}'"):
            vlmtune.load(name)


class FakeResponse:
    headers: dict[str, str] = {}  # noqa: RUF012
    status_code = 404
    request = None
