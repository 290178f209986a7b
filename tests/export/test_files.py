import json
import os
import shutil
import stat
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.backbones.hf_models import write_clip
from tests.model.checkpoints import checkpoint
from tests.refusals import refused
from tests.tiny import plugin
from vlmtune.adapters import LinearProbe, LoRA, MMAdapter, ZeroShot
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones import HFCLIP, OpenClip
from vlmtune.cli.run_folder import AtomicCheckpoints
from vlmtune.evaluation.scorer import Scorer
from vlmtune.export import save_export
from vlmtune.model import Model, check_checkpoint, load, read_checkpoint
from vlmtune.results import MetricValue, Result

TEXTS = ["a red cube left of the blue sphere", "a blue cube", "green sphere", "a blue cube"]
METRICS = {
    "accuracy": MetricValue(0.625, 40, 0.25, 0.47, 0.758),
    "rank": MetricValue(3.5, 40, higher_is_better=False, unit="rank"),
}
OPTIMIZER = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01, "fused": None}}
PROVENANCE = {
    "config": {"objectives": ["InfoNCE"], "steps": 3, "fit": {"model": {"optimizer": OPTIMIZER}}},
    "seed": 0,
    "versions": {"torch": "9.9"},
    "commit": "cafe",
    "date": "2030-01-01",
    "data": "cubes",
    "results": (Result("bench", "2", "accuracy", METRICS),),
}


def trained(clip, adapter):
    """A backbone and an adapter whose every weight was moved."""
    backbone = OpenClip(str(clip))
    adapter.attach(backbone)
    torch.manual_seed(7)
    for value in trained_state(backbone, adapter).values():
        value.add_(0.05 * torch.randn_like(value))
    return backbone, adapter


@pytest.fixture(scope="module")
def parts(model_folder):
    """A backbone and a trained adapter, which no test may change."""
    return trained(model_folder, LinearProbe())


@pytest.fixture(scope="module")
def written(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "mine"
    save_export(folder, *parts, provenance=PROVENANCE)
    return folder


@pytest.fixture
def exported(written, tmp_path):
    """An export that a test may damage."""
    return shutil.copytree(written, tmp_path / "mine")


def test_an_export_scores_the_same_to_the_last_bit(tmp_path, model_folder, pictures):
    for adapter in (LinearProbe(), MMAdapter(heads=2, hidden=1)):
        backbone, adapter = trained(model_folder, adapter)
        folder = tmp_path / type(adapter).__name__
        save_export(folder, backbone, adapter, provenance={})
        want = Model(backbone, adapter).score(pictures, TEXTS)
        zero_shot = ZeroShot()
        zero_shot.attach(backbone)
        assert not torch.allclose(want, Model(backbone, zero_shot).score(pictures, TEXTS))
        torch.manual_seed(99)
        assert load(folder).score(pictures, TEXTS).equal(want)


class Projection(ZeroShot):
    """Trains the last projection of the text tower."""

    def attach(self, backbone):
        super().attach(backbone)
        backbone.model.text_projection.requires_grad_(True)


def test_the_folder_holds_no_frozen_weights(exported, model_folder):
    names = ["README.md", "adapter.safetensors", "adapter_config.json"]
    assert sorted(p.name for p in exported.iterdir()) == names
    weights = load_file(exported / "adapter.safetensors")
    assert weights
    assert all(name.startswith("adapter.") for name in weights)
    config = json.loads((exported / "adapter_config.json").read_text())
    assert config["backbone"]["init_args"]["model"] == str(model_folder)
    assert config["backbone"]["fingerprint"] == OpenClip(str(model_folder)).fingerprint
    assert config["backbone"]["sizes"]["text_width"] == 16
    assert config["adapter"]["class_path"] == "vlmtune.adapters.linear_probe.LinearProbe"
    assert config["provenance"]["commit"] == "cafe"
    assert config["provenance"]["config"] == PROVENANCE["config"]
    assert config["scores"][0]["metrics"]["accuracy"]["low"] == 0.47
    card = (exported / "README.md").read_text()
    assert "| bench (v2) | **accuracy** ↑ | 62.5 % | 47.0–75.8 | 25.0 % | 40 |" in card
    assert "| bench (v2) | rank ↓ | 3.50 | – | – | 40 |" in card
    assert "vlmtune.load(" in card
    assert "Limitations" in card
    # One mode for all: safetensors writes files that only their owner reads.
    umask = os.umask(0)
    os.umask(umask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in exported.iterdir()}
    assert modes == {0o666 & ~umask}  # 0644 for the usual 022


def test_the_card_claims_what_was_measured_and_no_more(exported, tmp_path, model_folder):
    card = (exported / "README.md").read_text()
    weights = load_file(exported / "adapter.safetensors")
    values = sum(value.numel() for value in weights.values())
    assert f"holds the {values:,} trained\nparameters" in card
    head = ModelCard(card).data
    assert (head.library_name, head.pipeline_tag) == ("vlmtune", "zero-shot-image-classification")
    assert head.base_model is None  # a local folder is nobody's base model
    assert head.model_name == exported.name
    (shown,) = head.eval_results  # the primary metric of one benchmark
    assert (shown.dataset_type, shown.metric_type) == ("bench", "accuracy")
    assert shown.metric_value == 0.625
    recipe = ["data: cubes", "steps: 3", "objectives: InfoNCE", "optimizer: AdamW (lr 0.01)"]
    assert "\n".join(f"- {line}" for line in [*recipe, "seed: 0", "date: 2030-01-01"]) in card
    fixed_scale = trained(model_folder, LinearProbe(learn_scale=False))
    save_export(tmp_path / "unmeasured", *fixed_scale, provenance={})
    unmeasured = (tmp_path / "unmeasured" / "README.md").read_text()
    # The scale and the bias of its scores are in the file, too, but were not trained.
    assert f"holds the {values - 2:,} trained\nparameters" in unmeasured
    assert "Not measured: nothing is known of what this training changed." in unmeasured
    for claim in ("compositionality:", "bags of words", "which object"):
        assert claim not in unmeasured


def test_unfrozen_backbone_weights_travel_and_frozen_ones_do_not(tmp_path, model_folder, pictures):
    backbone = OpenClip(str(model_folder))
    assert backbone.fingerprint  # of the weights it was pre-trained with
    adapter = Projection()
    adapter.attach(backbone)
    with torch.no_grad():
        backbone.model.text_projection.mul_(-1.5)
    save_export(tmp_path / "mine", backbone, adapter, provenance={})
    names = load_file(tmp_path / "mine" / "adapter.safetensors").keys()
    assert {n for n in names if n.startswith("backbone.")} == {"backbone.model.text_projection"}
    want = Model(backbone, adapter).score(pictures, TEXTS)
    assert load(tmp_path / "mine", packages=["tests"]).score(pictures, TEXTS).equal(want)


def test_only_exports_are_overwritten(exported, tmp_path, parts):
    with refused("choose another, or replace it with `vlmtune export --out FOLDER --overwrite`"):
        save_export(exported, *parts, provenance={})
    assert "cafe" in (exported / "adapter_config.json").read_text()
    save_export(exported, *parts, provenance={}, overwrite=True)
    assert "cafe" not in (exported / "adapter_config.json").read_text()
    for folder in (exported, tmp_path / "thesis"):
        folder.mkdir(exist_ok=True)
        (folder / "thesis.tex").write_text("years of work")
        with refused("something else"):
            save_export(folder, *parts, provenance={}, overwrite=True)
        assert (folder / "thesis.tex").read_text() == "years of work"
    file = tmp_path / "file"
    file.write_text("x")
    with refused("something else"):
        save_export(file, *parts, provenance={}, overwrite=True)
    with refused("choose another folder"):
        save_export(file / "below", *parts, provenance={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mine", "thesis"]


def test_a_replacement_that_fails_leaves_the_old_export(exported, monkeypatch, parts):
    before = (exported / "README.md").read_text()
    replace = Path.replace

    def fail(path, target):
        if path.suffix == ".part":
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with refused("No space left"):
        save_export(exported, *parts, provenance={}, overwrite=True)
    assert (exported / "README.md").read_text() == before
    assert [path.name for path in exported.parent.iterdir()] == ["mine"]


def rewrite(folder, change):
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def drop_weight(folder):
    rewrite(folder, lambda config: config.pop("weights_sha256"))
    weights = load_file(folder / "adapter.safetensors")
    save_file(dict(list(weights.items())[1:]), folder / "adapter.safetensors")


def add_weight(folder):
    rewrite(folder, lambda config: config.pop("weights_sha256"))
    weights = load_file(folder / "adapter.safetensors")
    save_file({**weights, "adapter.more": torch.ones(1)}, folder / "adapter.safetensors")


def flip(path, where):
    """Changes one bit."""
    content = bytearray(path.read_bytes())
    content[where] ^= 16
    path.write_bytes(content)


def test_no_flipped_bit_of_the_weights_passes(exported):
    path = exported / "adapter.safetensors"
    whole = path.read_bytes()
    for where in (9, len(whole) // 2, len(whole) - 1):
        flip(path, where)
        with refused("expected"):
            load(exported)
        path.write_bytes(whole)
    load(exported)


def test_no_flipped_bit_of_a_checkpoint_passes(tmp_path, parts):
    path = checkpoint(tmp_path / "last.ckpt", *parts)
    with zipfile.ZipFile(path) as archive:
        data = [info for info in archive.infolist() if "/data" in info.filename]
        starts = {info.filename: info.header_offset for info in data}
    for name, start in starts.items():
        with zipfile.ZipFile(path) as archive, archive.open(name) as part:
            content = part.read()
        where = path.read_bytes().index(content, start) + len(content) // 2
        flip(path, where)
        with refused("as it was written, got another or no"):
            check_checkpoint(path)
        with refused("as it was written, got another or no"):
            AtomicCheckpoints().load_checkpoint(path)
        flip(path, where)
    check_checkpoint(path)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_weights_that_are_not_finite_are_neither_exported_nor_loaded(
    exported, tmp_path, model_folder, value
):
    backbone, adapter = trained(model_folder, LinearProbe())
    name, weight = next(iter(trained_state(backbone, adapter).items()))
    weight.view(-1)[0] = value
    with refused(f"expected finite weights, got NaN or infinity in '{name}'"):
        save_export(tmp_path / "new", backbone, adapter, provenance={})
    with refused(f"expected finite weights, got NaN or infinity in '{name}'"):
        check_checkpoint(checkpoint(tmp_path / "last.ckpt", backbone, adapter))
    rewrite(exported, lambda config: config.pop("weights_sha256"))
    weights = load_file(exported / "adapter.safetensors")
    save_file({**weights, name: weight}, exported / "adapter.safetensors")
    with refused(f"expected finite weights, got NaN or infinity in '{name}'"):
        load(exported)


FUNCTION, NOTHING = "vlmtune.config.find_path", "vlmtune.nothing.Here"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "configuration of an export"),
        (lambda f: (f / "adapter.safetensors").unlink(), "expected the weights"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "configuration of an export"),
        (lambda f: rewrite(f, lambda c: c.update(version=2)), "got 2 at version"),
        (lambda f: rewrite(f, lambda c: c["backbone"].pop("fingerprint")), "backbone/finger"),
        (lambda f: rewrite(f, lambda c: c["adapter"].update(class_path=FUNCTION)), "Adapter"),
        (lambda f: rewrite(f, lambda c: c["adapter"]["init_args"].update(x=1)), "argument"),
        (lambda f: rewrite(f, lambda c: c["adapter"].update(class_path=NOTHING)), "dotted path"),
        (drop_weight, "at 1 place,"),
        (add_weight, "at 1 place, first 'adapter.more'"),
    ],
)
def test_a_damaged_export_is_one_line(exported, damage, message):
    damage(exported)
    with refused(message):
        load(exported)


def test_sizes_that_no_memory_holds_are_one_line(tmp_path, model_folder):
    save_export(tmp_path / "mine", *trained(model_folder, LoRA()), provenance={})
    for rank in (10**15, 10**30, "many"):
        rewrite(tmp_path / "mine", lambda c, r=rank: c["adapter"]["init_args"].update(rank=r))
        with refused("expected"):
            load(tmp_path / "mine")


def test_a_pickle_is_never_read_and_a_header_that_claims_too_much_is_one_line(exported, capsys):
    torch.save({"adapter.x": Bomb()}, exported / "adapter.safetensors")
    with refused("expected the weights"):
        load(exported)
    assert "unpickled" not in capsys.readouterr().out
    claim = {"adapter.x": {"dtype": "F32", "shape": [2**50], "data_offsets": [0, 2**52]}}
    header = json.dumps(claim).encode()
    for length in (len(header), 2**62):
        weights = length.to_bytes(8, "little") + header
        (exported / "adapter.safetensors").write_bytes(weights)
        with refused("expected the weights"):
            load(exported)


@pytest.mark.parametrize("model", ["../../../etc", "/etc", "local-dir:../..", "~/x"])
def test_a_base_model_outside_is_no_model(exported, model):
    rewrite(exported, lambda config: config["backbone"]["init_args"].update(model=model))
    with refused("expected"):
        load(exported)


@pytest.mark.parametrize("where", ["folder", "hub"])
@pytest.mark.parametrize("inside", [False, True])
def test_an_export_imports_no_package_but_those_that_are_named(
    exported, hub, inside, where, tmp_path, monkeypatch
):
    def change(config):
        spec = {"class_path": "stranger.Adapter", "init_args": {}}
        if inside:
            config["adapter"]["init_args"] = {"parts": [spec]}
        else:
            config["adapter"] = spec

    rewrite(exported, change)
    hub("someone/mine", exported)
    source = str(exported) if where == "folder" else "someone/mine"
    (tmp_path / "stranger.py").write_text("print('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for packages in [(), ("strange", "other")]:
        line = f"of vlmtune in {source}, got stranger.Adapter: .*packages=.*--packages stranger"
        with refused(line):
            load(source, packages=packages)
    assert "stranger" not in sys.modules


def test_an_export_of_a_named_package_loads(exported, pictures, tmp_path, monkeypatch):
    scores = load(exported).score(pictures, TEXTS)

    def change(config):
        config["adapter"]["class_path"] = "friend.Mine"

    path = json.loads((exported / "adapter_config.json").read_text())["adapter"]["class_path"]
    module, _, name = path.rpartition(".")
    rewrite(exported, change)
    (tmp_path / "friend.py").write_text(f"from {module} import {name} as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load(exported, packages=["friend"]).score(pictures, TEXTS).equal(scores)
    sys.modules.pop("friend")


def test_a_checkpoint_imports_no_package_but_those_that_are_named(tmp_path, monkeypatch):
    strange = {"class_path": "stranger.Adapter", "init_args": {}}
    specs = {"version": 1, "backbone": strange, "fingerprint": "", "adapter": strange}
    torch.save({"vlmtune": specs, "state_dict": {}}, tmp_path / "last.ckpt")
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with refused("got stranger.Adapter: .*--packages stranger"):
        load(tmp_path / "last.ckpt")
    assert "stranger" not in sys.modules
    with pytest.raises(SystemExit, match="imported"):
        load(tmp_path / "last.ckpt", packages=["stranger"])
    specs["backbone"] = {"class_path": "friend.Backbone", "init_args": {}}
    torch.save({"vlmtune": specs, "state_dict": {}}, tmp_path / "last.ckpt")
    with refused("got friend.Backbone and stranger.Adapter: .*--packages friend stranger on"):
        load(tmp_path / "last.ckpt")


def test_a_backbone_at_hand_is_used_unless_it_is_another(
    exported, model_folder, other_folder, pictures
):
    with refused("other weights or preprocessing"):
        load(exported, backbone=OpenClip(str(other_folder)))
    backbone = OpenClip(str(model_folder))
    state = torch.get_rng_state()
    model = load(exported, backbone=backbone)
    assert torch.get_rng_state().equal(state)
    assert model.backbone is backbone
    assert model.score(pictures, TEXTS).equal(load(exported).score(pictures, TEXTS))


def test_model_agrees_with_scorer_and_its_own_embeddings_and_ranks(exported, pictures):
    model = load(exported)
    opened = [Image.open(path) for path in pictures]
    scores = model.score(opened, TEXTS)
    assert scores.shape == (3, 4)
    assert scores.equal(Scorer(model.backbone, model.adapter)(opened, TEXTS))
    assert scores.equal(model.score([str(path) for path in pictures], TEXTS))
    image, text = model.encode_image(pictures), model.encode_text(TEXTS)
    torch.testing.assert_close(torch.cat([image, text]).norm(dim=1), torch.ones(3 + 4))
    adapter = model.adapter
    expected = adapter.log_scale.exp() * image @ text.T + adapter.bias
    torch.testing.assert_close(scores, expected.detach())
    assert model.score(pictures[0], TEXTS[1]).shape == (1, 1)
    assert model.score([], TEXTS).shape == (0, 4)
    assert model.encode_image([]).shape == (0, 16)
    torch.testing.assert_close(model.encode_text(TEXTS[1])[0], text[1])
    images = [*pictures, pictures[0]]
    scores = model.score(images, TEXTS[0])[:, 0].tolist()
    ranked = model.rank(TEXTS[0], images)
    assert [score for _, score in ranked] == sorted(scores, reverse=True)
    assert all(scores[i] == score for i, score in ranked)
    positions = [i for i, _ in ranked]
    assert positions.index(0) < positions.index(3)


def test_the_cache_of_a_model_is_dropped_in_time(exported, pictures, monkeypatch):
    monkeypatch.setattr("vlmtune.model.model.CACHED", 3)
    model = load(exported)
    first = model._scorer
    model.score(pictures, TEXTS)
    assert model._scorer is first
    model.score(pictures, TEXTS)
    assert model._scorer is not first
    # What is cached already does not count again.
    monkeypatch.setattr("vlmtune.model.model.CACHED", 20)
    kept = model._scorer
    for _ in range(9):
        model.score(pictures, TEXTS)
    assert model._scorer is kept


def test_a_joint_adapter_has_no_embeddings(model_folder, pictures):
    model = Model(*trained(model_folder, MMAdapter(heads=2, hidden=1)))
    with refused("use score or rank"):
        model.encode_image(pictures)
    with refused("use score or rank"):
        model.encode_text("a cube")
    assert len(model.rank("a cube", pictures)) == 3


class Bomb:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_what_is_no_checkpoint_is_one_line_and_never_unpickled(tmp_path, capsys, parts):
    good = checkpoint(tmp_path / "good.ckpt", *parts)
    files = {name: tmp_path / f"{name}.ckpt" for name in ("cut", "text", "foreign", "bomb", "list")}
    files["cut"].write_bytes(good.read_bytes()[:-500])
    files["text"].write_text("not a checkpoint")
    torch.save({"state_dict": {}}, files["foreign"])
    torch.save({"vlmtune": Bomb()}, files["bomb"])
    torch.save([1], files["list"])
    files["none"] = tmp_path / "none.ckpt"
    for path in files.values():
        with refused("expected a vlmtune checkpoint"):
            check_checkpoint(path)
    assert "unpickled" not in capsys.readouterr().out
    newer = checkpoint(tmp_path / "newer.ckpt", *parts, version=2)
    with refused("got 2 at vlmtune/version"):
        read_checkpoint(newer)
    other = checkpoint(tmp_path / "other.ckpt", *parts, fingerprint="beef")
    with refused("other weights"):
        read_checkpoint(other)


@pytest.mark.parametrize("kind", ["open_clip", "transformers"])
def test_a_base_model_that_has_moved_is_named(kind, tmp_path, model_folder, pictures):
    base = tmp_path / "base"
    if kind == "open_clip":
        backbone = OpenClip(str(shutil.copytree(model_folder, base)))
    else:
        backbone = HFCLIP(str(write_clip(base)))
    adapter = LinearProbe()
    adapter.attach(backbone)
    save_export(tmp_path / "mine", backbone, adapter, provenance={})
    moved = base.rename(tmp_path / "moved")
    with refused(f"the base model {base} of .*, it is not here: name it with --pretrained FOLDER"):
        load(tmp_path / "mine")
    found = load(tmp_path / "mine", str(moved), device="cpu")
    want = Model(backbone, adapter).score(pictures, TEXTS)
    torch.testing.assert_close(found.score(pictures, TEXTS), want)
    if kind == "open_clip":  # as a hub id is named, not by a folder
        found = load(tmp_path / "mine", f"local-dir:{moved}", device="cpu")
        torch.testing.assert_close(found.score(pictures, TEXTS), want)


def test_resolve_finds_every_kind(exported, tmp_path, model_folder, pictures, parts):
    path = checkpoint(tmp_path / "a.ckpt", *parts)
    spec = plugin("backbones.open_clip.OpenClip", model=str(model_folder))
    plain, both = tmp_path / "backbone.yaml", tmp_path / "both.yaml"
    plain.write_text(json.dumps(spec))
    probe = plugin("adapters.linear_probe.LinearProbe")
    both.write_text(json.dumps({"backbone": "backbone.yaml", "adapter": probe}))
    names = (exported, path, model_folder, plain, both)
    assert read_checkpoint(path).score(pictures, TEXTS).equal(Model(*parts).score(pictures, TEXTS))
    kinds = [type(load(str(name)).adapter) for name in names]
    assert kinds == [LinearProbe, LinearProbe, ZeroShot, ZeroShot, LinearProbe]
    assert load(f"local-dir:{model_folder}").score(pictures, TEXTS).shape == (3, 4)
    for name in (exported, path, plain):
        with refused("pretrained"):
            load(str(name), "openai")
    with refused("did you mean"):
        load("ViT-B-322")
    for text, message in (("a: [1", "expected a YAML"), ("a: 1", "class_path")):
        plain.write_text(text)
        with refused(message):
            load(str(plain))
