"""Weights between the pre-trained and the trained ones, in Python and on the command line."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.utils import parametrize

import vlmtune
from tests.backbones.hf_models import write_flava
from tests.contracts.test_adapters import CONFIGS, Made
from tests.model.checkpoints import checkpoint
from tests.refusals import command_output, command_refused, refused
from tests.runs import weights
from tests.tiny import cola_plugin, halves, write_cola
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.context_prompts import ContextPrompts
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.adapters.grounded_vectors import GroundedVectors
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.adapters.late_interaction import LateInteraction
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.lora import LoRA
from vlmtune.adapters.matching import Matching
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones import Flava, OpenClip
from vlmtune.config import instantiate
from vlmtune.errors import UserError
from vlmtune.model import Model, WiseFT

SPECS = {path.stem: yaml.safe_load(path.read_text()) for path in CONFIGS}


def made_of(backbone, adapter):
    pixels = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    return Made(backbone.eval(), adapter.eval(), pixels)


def trained(folder, adapter, family=OpenClip):
    backbone = family(str(folder))
    torch.manual_seed(3)
    try:
        adapter.attach(backbone)
    except UserError as error:
        pytest.skip(str(error))
    made = made_of(backbone, adapter)
    for _ in range(3 if made.trained() else 0):
        made.fit()
    return made


def up_to_scale_and_offset(got, want):
    got, want = got.detach().double(), want.detach().double()
    design = torch.stack([want.flatten(), torch.ones_like(want.flatten())], dim=1)
    scale, offset = torch.linalg.lstsq(design, got.flatten()[:, None]).solution.flatten()
    return bool(scale > 0) and torch.allclose(scale * want + offset, got, rtol=1e-4, atol=1e-4)


# It starts as plain MaxSim: neither at random nor as the zero-shot model.
OTHERS = [stem for stem in SPECS if stem != "late_interaction"]


@pytest.mark.parametrize("stem", OTHERS)
def test_0_is_the_zero_shot_model_and_1_the_trained_one(stem, model_folder):
    adapter = instantiate(SPECS[stem], Adapter)
    made = trained(model_folder, adapter)
    before, scores = weights(made), made.values()
    if not adapter.identity_at_init:
        with refused("starts as the zero-shot model") as error:
            WiseFT(made.backbone, adapter)
        assert type(adapter).__name__ in str(error.value)
        assert "leave --alpha out" in str(error.value)
        return
    zero = ZeroShot()
    want = made_of(OpenClip(str(model_folder)), zero)
    zero.attach(want.backbone)
    line = WiseFT(made.backbone, adapter)
    assert made.values().equal(scores)  # nothing has changed yet
    line.at(0.0)
    assert up_to_scale_and_offset(made.values(), want.values())
    if stem != "zero_shot":
        line.at(0.5)
        half = made.values()
        assert not half.equal(scores)
        assert not up_to_scale_and_offset(half, want.values())
    line.at(1.0)
    assert made.values().equal(scores)
    assert all(value.equal(before[name]) for name, value in weights(made).items())


@pytest.mark.parametrize(
    ("make", "family"),
    [
        (LateInteraction, OpenClip),
        (lambda: Matching(blocks=1), Flava),
        (lambda: ContextPrompts(init="a red"), OpenClip),
    ],
    ids=["late_interaction", "matching", "context_prompts"],
)
def test_0_is_the_start_of_an_adapter_that_starts_otherwise(make, family, model_folder, tmp_path):
    folder = write_flava(tmp_path / "flava") if family is Flava else model_folder
    backbone, adapter = family(str(folder)), make()
    adapter.attach(backbone)
    untrained = made_of(backbone, adapter).values()
    made = trained(folder, make(), family)
    last = made.values()
    line = WiseFT(made.backbone, made.adapter)
    line.at(0.0)
    assert not made.values().equal(last)
    torch.testing.assert_close(made.values(), untrained)
    line.at(1.0)
    assert made.values().equal(last)


@pytest.mark.parametrize("adapter", [FullFineTuning(), LastBlocks(1, 1), LinearProbe()])
@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_weights_lie_on_the_line(adapter, alpha, model_folder):
    made = trained(model_folder, type(adapter)(**adapter.spec()["init_args"]))
    last = weights(made)
    first = dict(OpenClip(str(model_folder)).named_parameters())
    WiseFT(made.backbone, made.adapter).at(alpha)
    moved = 0
    for name, value in weights(made).items():
        if name in ("adapter.image.weight", "adapter.text.weight"):
            start = torch.eye(16)
        elif name.startswith("backbone."):
            start = first[name.removeprefix("backbone.")].detach()
        else:
            continue
        torch.testing.assert_close(value, (1 - alpha) * start + alpha * last[name])
        moved += not value.equal(last[name])
    assert moved >= 2


def test_lora_interpolates_the_weights_it_updates(model_folder):
    made = trained(model_folder, LoRA(rank=2))
    module, name = next(
        (module, name)
        for module in made.backbone.modules()
        if parametrize.is_parametrized(module)
        for name in module.parametrizations
    )
    plain = OpenClip(str(model_folder))
    path = next(n for n, m in made.backbone.named_modules() if m is module)
    start = getattr(plain.get_submodule(path), name).detach()
    last = getattr(module, name).detach().clone()
    assert not last.equal(start)
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    WiseFT(made.backbone, made.adapter).at(0.25)
    assert torch.rand(2).equal(want)  # the random state is left alone
    torch.testing.assert_close(getattr(module, name).detach(), 0.75 * start + 0.25 * last)


def vars_of(made):
    return made.backbone, made.adapter


@pytest.fixture(scope="module")
def saved(tmp_path_factory, model_folder):
    """A checkpoint of last blocks that training has changed."""
    made = trained(model_folder, LastBlocks(1, 1))
    return checkpoint(tmp_path_factory.mktemp("wise") / "last.ckpt", *vars_of(made))


RETAINED = """
from vlmtune.benchmarks.cola_multi import ColaMulti


class Retained(ColaMulti):
    kind = "retained"
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """YAML of two benchmarks, one of them of what is to be retained."""
    (tmp_path / "retained_toy.py").write_text(RETAINED)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write_cola(tmp_path / "cola")
    kept = {**cola_plugin(path, name="kept"), "class_path": "retained_toy.Retained"}
    (tmp_path / "suite.yaml").write_text(json.dumps([kept, cola_plugin(path, name="new")]))
    return tmp_path / "suite.yaml"


def run(capsys, *arguments):
    return command_output(capsys, ["export", *arguments])


def rows(out):
    lines = [line for line in out.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("given", [(), (0.0,), (0.5,), (1.0,)])
def test_an_export_records_its_alpha(saved, tmp_path, capsys, given, model_folder):
    out = tmp_path / "out"
    # Without the option the trained weights are exported.
    (alpha,) = given or (1.0,)
    run(capsys, saved, "--out", out, *(f"--alpha={x}" for x in given))
    assert json.loads((out / "adapter_config.json").read_text())["alpha"] == alpha
    card = (out / "README.md").read_text()
    assert ("WiSE-FT" in card) == (alpha != 1)
    assert (f"alpha {alpha:g}" in card) == (alpha != 1)
    if alpha == 0.5:  # written again, it is still of this alpha
        run(capsys, out, "--image-size=64", "--out", tmp_path / "larger")
        assert json.loads((tmp_path / "larger/adapter_config.json").read_text())["alpha"] == alpha
        again = ["export", out, "--image-size=64", "--alpha=0", "--out", tmp_path / "other"]
        command_refused(capsys, again, "leave out --alpha and --alphas")
    picture = tmp_path / "picture.png"
    halves("red", "blue").save(picture)
    texts = ["a red cube", "a blue dog"]
    got = vlmtune.load(out).score(picture, texts)
    made = trained(model_folder, LastBlocks(1, 1))
    WiseFT(made.backbone, made.adapter).at(alpha)
    assert got.equal(Model(made.backbone, made.adapter).score(picture, texts))


def test_a_sweep_shows_both_kinds_side_by_side_and_writes_nothing(saved, suite, tmp_path, capsys):
    before = sorted(Path.cwd().iterdir())
    options = ("--benchmarks", suite, "--device", "cpu")
    out, _ = run(capsys, saved, "--alphas", "0,0.5,1", *options)
    head, _, *points = rows(out)
    means = ["compositional mean", "compositional: new", "retained mean", "retained: kept"]
    assert head == ["alpha", *means]
    assert [row[0] for row in points] == ["0", "0.5", "1"]
    assert all(row[1] == row[2] == row[3] == row[4] for row in points)  # the same benchmark
    assert all(row[1].endswith("%") for row in points)
    assert sorted(Path.cwd().iterdir()) == before
    # It measures what is exported.
    options = (*options, "--alphas", "0.5,1")
    out = tmp_path / "out"
    table, _ = run(capsys, saved, *options, "--alpha", 0.5, "--out", out)
    half = rows(table)[2]
    assert half == points[1]
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["alpha"] == 0.5
    by_name = {one["benchmark"]: one for one in config["scores"]}
    value = by_name["new"]["metrics"][by_name["new"]["primary"]]["value"]
    assert f"{100 * value:.1f}" == half[2].split()[0]


def test_a_benchmark_that_cannot_be_run_is_said_once(saved, suite, tmp_path, capsys):
    spec = json.loads(suite.read_text())
    spec[0]["init_args"]["path"] = str(tmp_path / "nowhere.json")
    suite.write_text(json.dumps(spec))
    options = ("--alphas", "0,1", "--benchmarks", suite, "--device", "cpu")
    out, _ = run(capsys, saved, *options)
    assert out.count("not run: kept") == 1
    assert rows(out)[2][-1] == "–"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--alphas", "0,1"], "expected --benchmarks with --alphas"),
        (["--benchmarks", "x", "--out", "x"], "expected --alphas with --benchmarks"),
        (
            ["--alphas", "0,1", "--benchmarks", "x.csv", "--table.images", "photos"],
            "expected the table 'x.csv', there is no such file",
        ),
        (["--alpha", "0.5"], "--out FOLDER to write"),
        (["--alphas", "0,1", "--benchmarks", "x", "--out", "x"], "which of --alphas to write"),
        (["--alpha", "2", "--out", "x"], "expected alpha from 0 (pre-trained) to 1 (trained)"),
        (["--alphas", "0;1", "--benchmarks", "x"], "expected numbers with commas, got '0;1'"),
        (["--alpha", "0.5", "--out", "x", "--report", "r"], "no --report with --alpha 0.5"),
        (["--vectors", "-1", "--out", "x"], "expected a weight of at least 0 with --vectors"),
        (["--vectors", "2", "--out", "x"], "grounded words with --vectors, got LastBlocks"),
        (["--directions", "2", "--out", "x"], "expected --vectors, --directions and --images"),
    ],
)
def test_contradictions_are_one_line(saved, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (_,) = command_refused(capsys, ["export", saved, *arguments], said)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_taken_is_said_before_measuring(saved, suite, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")
    options = ("--alphas", "0,1", "--benchmarks", suite, "--alpha", 0, "--out", tmp_path / "taken")
    command_refused(capsys, ["export", saved, *options], "holds something else")


def test_grounded_words_are_exported_as_vectors(tmp_path, model_folder, capsys):
    made = trained(model_folder, GroundedWords(heads=2))
    path = checkpoint(tmp_path / "words.ckpt", *vars_of(made))
    run(capsys, path, "--vectors", 1.5, "--out", tmp_path / "out")
    adapter = vlmtune.load(tmp_path / "out").adapter
    assert isinstance(adapter, GroundedVectors)
    assert adapter.adapter.frozen_weight == 1.5
    exported = dict(adapter.adapter.named_parameters())
    # The export of grounded words does as well as their checkpoint.
    run(capsys, path, "--out", tmp_path / "words")
    run(capsys, tmp_path / "words", "--vectors", 1.5, "--out", tmp_path / "again")
    assert vlmtune.load(tmp_path / "again").digest() == vlmtune.load(tmp_path / "out").digest()
    # Vectors keep the lengths that they were trained with.
    long = GroundedVectors(GroundedWords(heads=2), image_length=32.0, text_length=64.0)
    path_of_vectors = checkpoint(tmp_path / "long.ckpt", *vars_of(trained(model_folder, long)))
    run(capsys, path_of_vectors, "--vectors", 1.5, "--out", tmp_path / "long")
    kept = vlmtune.load(tmp_path / "long").adapter
    assert (kept.image_length, kept.text_length) == (32, 64)
    halves("red", "blue").save(tmp_path / "one.png")
    halves("blue", "red").save(tmp_path / "two.png")
    short = (path, "--vectors", 1.5, "--images", tmp_path, "--out", tmp_path / "short")
    few = "expected at least 3 images for as many directions, got 2"
    command_refused(capsys, ["export", *short, "--directions", 3], few)
    run(capsys, *short, "--directions", 2)
    shortened = vlmtune.load(tmp_path / "short").encode_image(tmp_path / "one.png")
    assert shortened.shape[1] == made.backbone.embed_dim + 2 + 3
    for name, parameter in made.adapter.named_parameters():
        if exported[name].requires_grad:
            assert exported[name].equal(parameter)
