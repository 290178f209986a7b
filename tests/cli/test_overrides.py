"""Stems of plug-ins, and items of lists, on the command line of `vlmtune fit`."""

import json

import pytest
import yaml

from tests.backbones import hf_models
from tests.refusals import command_output, command_refused, refused
from tests.runs import QUIET
from tests.test_configs import Parsed
from tests.tiny import cola_plugin, plugin, write_cola
from vlmtune.cli.nulls import with_nulls
from vlmtune.cli.overrides import changed_lists, loses_name, rewritten

pytestmark = QUIET

CONFIG = """
trainer:
  callbacks:
    - class_path: vlmtune.training.benchmark_callback.BenchmarkCallback
      init_args: {name: mine, benchmarks: BENCHMARKS, every_n_steps: 500}
    - class_path: vlmtune.training.ema.EMA
model:
  backbone: {class_path: vlmtune.backbones.open_clip.open_clip.OpenClip, init_args: {model: some}}
  adapter: {class_path: vlmtune.adapters.linear_probe.LinearProbe}
  objectives:
    - {class_path: vlmtune.objectives.pair_bce.PairBCE}
    - {class_path: vlmtune.objectives.info_nce.InfoNCE}
data: {train: [{path: old}], batch_size: 4}
"""


@pytest.fixture
def parsed(tmp_path):
    """Returns the complete config of a command line, without making anything."""
    path = write_cola(tmp_path / "world")
    listed = [cola_plugin(path, name=name) for name in ("seen", "unseen")]
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("BENCHMARKS", json.dumps(listed)))

    def parse(*words: str) -> dict:
        made = Parsed("fit", ["--config", str(file), *words])
        return yaml.safe_load(made._parser("fit").dump(made.config["fit"], skip_unset=False))

    return parse


def names(plugins: list[dict]) -> list[str]:
    return [one["class_path"].rpartition(".")[2] for one in plugins]


@pytest.mark.parametrize(
    ("item", "same"), [(".0", ".BenchmarkCallback"), (".0.init_args", "[0].init_args")]
)
def test_any_callback_can_be_reached(parsed, item, same):
    words = (f"--trainer.callbacks{item}.every_n_steps", "30", "--trainer.callbacks.EMA.decay=.9")
    named = (f"--trainer.callbacks{same}.name", "2026-11-29")  # a date of YAML
    first, last = parsed(*words, *named)["trainer"]["callbacks"]
    assert first["init_args"]["name"] == "2026-11-29"
    assert names([first, last]) == ["BenchmarkCallback", "EMA"]
    assert first["init_args"]["every_n_steps"] == 30
    assert [b["init_args"]["name"] for b in first["init_args"]["benchmarks"]] == ["seen", "unseen"]
    assert last["init_args"]["decay"] == 0.9


def test_a_callback_with_an_enum_as_a_default_is_added_and_printed(parsed, tmp_path, capsys):
    assert names(parsed()["trainer"]["callbacks"]) == ["BenchmarkCallback", "EMA"]
    added = ["--trainer.callbacks+", "pytorch_lightning.callbacks.Timer"]
    words = ["--config", tmp_path / "config.yaml", *added, "--trainer.callbacks.EMA.decay=.9"]
    config, _ = command_output(capsys, ["fit", *words, "--print_config"])
    _, ema, timer = yaml.safe_load(config)["trainer"]["callbacks"]
    assert ema["init_args"]["decay"] == 0.9
    assert timer["init_args"]["interval"] == "step"


def test_any_benchmark_can_be_reached(parsed):
    key = "--trainer.callbacks.BenchmarkCallback.benchmarks"
    config = parsed(f"{key}.unseen.limit", "7", f"{key}.0.limit", "3")
    benchmarks = config["trainer"]["callbacks"][0]["init_args"]["benchmarks"]
    assert [b["init_args"]["limit"] for b in benchmarks] == [3, 7]
    config = parsed(key, "[cola_multi, cola_single]")
    benchmarks = config["trainer"]["callbacks"][0]["init_args"]["benchmarks"]
    assert names(benchmarks) == ["ColaMulti", "ColaSingle"]


def test_any_objective_can_be_reached(parsed):
    # A number that YAML 1.1 would take for a text.
    objectives = parsed("--model.objectives.PairBCE.weight", "1e-5")["model"]["objectives"]
    assert names(objectives) == ["PairBCE", "InfoNCE"]
    assert [one["init_args"]["weight"] for one in objectives] == [1e-5, 1.0]
    objectives = parsed("--model.objectives.1", "sigmoid")["model"]["objectives"]
    assert names(objectives) == ["PairBCE", "Sigmoid"]
    objectives = parsed("--model.objectives+", "eqsim")["model"]["objectives"]
    assert names(objectives) == ["PairBCE", "InfoNCE", "EqSim"]


def test_stems_and_folders(parsed):
    words = ("--model.adapter", "lora", "--model.pairs=hard_pairs", "--model.backbone", "flava")
    model = parsed(*words, "--model.objectives", "[info_nce, eqsim]")["model"]
    assert names([model["adapter"], model["pairs"]]) == ["LoRA", "HardPairs"]
    assert names([model["backbone"], *model["objectives"]]) == ["Flava", "InfoNCE", "EqSim"]
    assert parsed("--model.pairs", "null")["model"]["pairs"] is None
    for words in (["data/mine"], ["[data/mine]"], ['[{"path": "data/mine"}]']):
        (only,) = parsed("--data.train", *words)["data"]["train"]
        assert only.get("init_args", only)["path"] == "data/mine"


def test_a_backbone_goes_by_the_name_of_a_model(parsed, tmp_path, model_folder, hub, monkeypatch):
    weights = tmp_path / "negclip.pt"
    weights.touch()
    clip = hf_models.write_clip(tmp_path / "clip")
    hub("someone/clip", clip)
    monkeypatch.chdir(tmp_path)
    named = {
        "ViT-B-32-quickgelu:openai": ("OpenClip", "ViT-B-32-quickgelu", "openai"),
        "RN50:negclip.pt": ("OpenClip", "RN50", "negclip.pt"),
        str(model_folder): ("OpenClip", str(model_folder), None),
        "checkpoints/scenes-clip": ("OpenClip", "checkpoints/scenes-clip", None),
        "clip": ("HFCLIP", "clip", None),
        "someone/clip": ("HFCLIP", "someone/clip", None),
        "timm:resnet18": ("TimmImage", "resnet18", None),
        "OpenClip": ("OpenClip", "some", None),
    }
    for name, expected in named.items():
        backbone = parsed("--model.backbone", name)["model"]["backbone"]
        options = backbone["init_args"]
        made = (*names([backbone]), options["model"], options.get("pretrained"))
        assert made == expected, name


@pytest.mark.parametrize(
    "one", ["info_nce", "configs/plugins/objectives/info_nce.yaml", "[InfoNCE]", "InfoNCE"]
)
def test_one_objective_is_a_list_of_one(parsed, one):
    assert names(parsed("--model.objectives", one)["model"]["objectives"]) == ["InfoNCE"]


def test_a_method_goes_by_its_stem(parsed, tmp_path):
    (tmp_path / "config.yaml").write_text("data: {train: [{path: old}], batch_size: 4}")
    backbone = "--model.init_args.backbone.init_args.model=some"
    model = parsed("--model", "mm_adapter", "--model.init_args.backbone=open_clip", backbone)
    assert names([model["model"]]) == ["MMAdapterModule"]


def test_a_null_of_a_named_module_is_not_a_text(parsed, tmp_path):
    (tmp_path / "config.yaml").write_text("data: {train: [{path: old}], batch_size: 4}")
    backbone = ("--model.backbone", "open_clip", "--model.backbone.model=some")
    nulls = ("--model.backbone.pretrained", "null", "--model.objectives=[on_embeddings, info_nce]")
    change = ("--model.init_args.objectives.1.weight", "2")
    model = parsed("--model", "eqsim", *backbone, *nulls, *change)["model"]["init_args"]
    assert model["backbone"]["init_args"]["pretrained"] is None
    assert [one["init_args"]["weight"] for one in model["objectives"]] == [None, 2]
    beside = with_nulls(["--model.a.empty=", "--model.a.split=null"], "model")
    assert beside == ['--model={"a": {"empty": "", "split": null}}']


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("--model.backbone=none.pt", ["expected a model in none.pt, got no such file"]),
        ("--model.backbone=negclip.pt", ["write ARCHITECTURE:negclip.pt, for example"]),
        (
            "--model.backbone=checkpoints/scenes-grounded-words",
            ["which vlmtune trained", "vlmtune export --merged"],
        ),
        ("--model.adapter=lorra", ["Others: bottleneck, ", "did you mean 'lora'?"]),
        ("--trainer.callbacks.2.every_n_steps=3", ["0 (BenchmarkCallback, mine), 1 (EMA)", "'2'"]),
        ("--trainer.callbacks.Emma.decay=3", ["0 (BenchmarkCallback, mine), 1 (EMA)", "'Emma'"]),
        ("--model.objectives.PairBCE.wight=3", ["'wight' is not accepted", "'weight'"]),
        ("--model.objectives.0.weight", ["expected one argument"]),
        ("--model.objectives+=margin.yaml", ["'margin.yaml': there is no such file"]),
    ],
)
def test_what_cannot_be_reached_is_said(parsed, tmp_path, capsys, monkeypatch, word, parts):
    (tmp_path / "negclip.pt").touch()
    monkeypatch.chdir(tmp_path)
    (_,) = command_refused(capsys, ["fit", "--config", tmp_path / "config.yaml", word], *parts)


def test_a_class_that_occurs_twice_needs_its_position():
    config = {"objectives": [plugin("a.One"), plugin("a.One"), plugin("a.Other")]}
    with refused(r"0 \(One\), 1 \(One\), 2 \(Other\), got 'One', which is 2 of them"):
        changed_lists(config, [("objectives.One.weight", 2)])
    with refused("expected one of objectives"):
        changed_lists(config, [("objectivs.0.weight", 2)])
    changed = changed_lists(config, [("objectives.1.weight", 2), ("objectives.Other.weight", 3)])
    (word,) = changed
    made = json.loads(word.removeprefix("--objectives="))
    assert [one["init_args"].get("weight") for one in made] == [None, 2, 3]


def test_the_name_of_a_file_names_no_run():
    assert loses_name(["--model.adapter=lora", "--trainer.callbacks.ModelCheckpoint.filename=best"])
    assert not loses_name(["--model.adapter=lora", "--trainer.callbacks.0.init_args.name", "mine"])


def test_other_words_stay_as_they_are():
    words = ["--config", "a.yaml", "--trainer.max_steps=5", "--model.store", "lora"]
    assert rewritten(words) == (words, [])


def test_the_help_of_a_plugin_goes_by_its_stem():
    words, _ = rewritten(["--model.adapter.help", "lora", "--model.objectives.help=a.B"])
    assert words == [
        "--model.adapter.help=vlmtune.adapters.lora.LoRA",
        "--model.objectives.help=a.B",
    ]
