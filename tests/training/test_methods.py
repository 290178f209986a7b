"""The modules of the papers are `AdaptationModule` with defaults, and nothing else."""

import copy
from pathlib import Path
from pydoc import locate

import pytest
import torch
import yaml
from jsonargparse._parameter_resolvers import get_signature_parameters as get_parameters
from pytorch_lightning import Trainer

from tests.runs import QUIET, Watch, fit
from tests.test_configs import Parsed
from tests.tiny import write_cola
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.context_prompts import ContextPrompts
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.main import main
from vlmtune.config import instantiate
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.objectives.base import Objective
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.pairs.all_pairs import AllPairs
from vlmtune.report.run_report import RunReport
from vlmtune.training.methods import (
    EqSimModule,
    LateLayerModule,
    LinearProbeModule,
    MMAdapterModule,
    PromptTuningModule,
)
from vlmtune.training.module import AdaptationModule

pytestmark = QUIET

ROOT = Path(__file__).parents[2]
ALL = (EqSimModule, LateLayerModule, LinearProbeModule, MMAdapterModule, PromptTuningModule)
CONFIGS = {
    MMAdapterModule: ("cola/base.yaml", "cola/mm_adapter.yaml"),
    LinearProbeModule: ("cola/base.yaml", "cola/linear_probe.yaml"),
    PromptTuningModule: ("cola/base.yaml", "cola/word_prompts.yaml"),
    LateLayerModule: ("cola/base.yaml", "cola/ft_late.yaml"),
    EqSimModule: ("eqsim/base.yaml", "eqsim/v1_all_v2_close.yaml"),
}
PARTS = ("adapter", "objectives", "pairs", "optimizer")  # whose defaults are a module's own


def weights(module):
    state = trained_state(module.backbone, module.adapter)
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("cls", ALL)
def test_its_arguments_are_those_of_the_one_module(cls):
    own, base = (get_parameters(each, "__init__") for each in (cls, AdaptationModule))
    own, base = ({one.name: one.default for one in each} for each in (own, base))
    assert own.keys() == base.keys()  # `vlmtune fit` sees the options behind **options
    for part in PARTS:
        del own[part], base[part]
    assert own == base
    assert [name for name in vars(cls) if not name.startswith("_")] == []  # no step of its own


@pytest.mark.parametrize("cls", ALL)
def test_it_trains(cls, model_folder, shards, tmp_path):
    module = cls(OpenClip(str(model_folder)), optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))
    before = weights(module)
    _, watch = fit(module, shards, tmp_path, steps=2)
    assert all(torch.tensor(watch.losses).isfinite())
    assert any(not value.equal(before[name]) for name, value in weights(module).items())


@pytest.mark.parametrize(
    ("cls", "adapter"),
    [(LateLayerModule, LastBlocks(1, 0)), (PromptTuningModule, ContextPrompts(2))],
)
def test_other_adapters_of_the_family(cls, adapter, model_folder, shards, tmp_path):
    module = cls(OpenClip(str(model_folder)), adapter, [InfoNCE()], store=str(tmp_path / "store"))
    _, watch = fit(module, shards, tmp_path, steps=2)
    assert watch.decoded == [False] * 2  # what is frozen was stored


def told(*files):
    """The `model` of experiments laid over each other, with the plug-ins that they name by path."""
    model = {}
    for file in files:
        path = ROOT / "configs/experiments" / file
        for key, value in yaml.safe_load(path.read_text())["model"].items():
            listed = value if isinstance(value, list) else [value]
            read = [plugin(path.parent, item) for item in listed]
            model[key] = read if isinstance(value, list) else read[0]
    return model


def plugin(folder, item):
    """The content of a plug-in's YAML where `item` is its path."""
    named = isinstance(item, str) and item.endswith(".yaml")
    return yaml.safe_load((folder / item).read_text()) if named else item


@pytest.mark.parametrize("cls", CONFIGS)
def test_its_defaults_are_those_of_the_papers_experiment(cls, backbone):
    paper = told(*CONFIGS[cls])
    module = cls(backbone)
    assert module.adapter.spec() == instantiate(paper["adapter"], Adapter).spec()
    objectives = [instantiate(spec, Objective).spec() for spec in paper["objectives"]]
    assert [one.spec() for one in module.objectives] == objectives
    assert "pairs" not in paper
    assert isinstance(module.pairs, AllPairs)
    settings = module.make_optimizer([torch.nn.Parameter(torch.ones(1))]).defaults
    assert settings.items() >= paper["optimizer"]["init_args"].items()


def test_the_learning_rate_over_flava_is_colas(model_folder):
    class Flava(OpenClip): ...

    wanted = told("cola/backbones/flava.yaml")["optimizer"]["init_args"]
    module = MMAdapterModule(Flava(str(model_folder)))
    settings = module.make_optimizer([torch.nn.Parameter(torch.ones(1))]).defaults
    assert settings.items() >= wanted.items()


CONFIG = {
    "seed_everything": 0,
    "model": {
        "adapter": {"class_path": "vlmtune.adapters.mm_adapter.MMAdapter"},
        "objectives": [{"class_path": "vlmtune.objectives.pair_bce.PairBCE"}],
        "optimizer": {
            "class_path": "torch.optim.AdamW",
            "init_args": {"lr": 1e-5, "weight_decay": 1e-4},
        },
    },
    "trainer": {
        "max_steps": 4,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "num_sanity_val_steps": 0,
    },
}


def test_five_lines_of_python_do_what_the_config_does(model_folder, shards, tmp_path):
    config = {**copy.deepcopy(CONFIG), "data": {"train": [{"path": str(shards)}], "batch_size": 4}}
    config["model"]["backbone"] = {
        "class_path": "vlmtune.backbones.open_clip.open_clip.OpenClip",
        "init_args": {"model": str(model_folder)},
    }
    config["trainer"]["default_root_dir"] = str(tmp_path / "run")
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", str(tmp_path / "fit.yaml")]) == 0
    (checkpoint,) = (tmp_path / "run").rglob("*.ckpt")
    wanted = torch.load(checkpoint, weights_only=True)["state_dict"]

    torch.manual_seed(5)  # what was drawn before must not matter
    watch = Watch()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    module = MMAdapterModule(OpenClip(str(model_folder)))
    data = ShardDataModule([ShardSet(str(shards))], batch_size=4)
    trainer = Trainer(max_steps=4, accelerator="cpu", callbacks=[watch], **quiet)
    trainer.fit(module, data)

    got = weights(module)
    assert got.keys() == wanted.keys()
    assert all(value.equal(wanted[name]) for name, value in got.items())
    assert len(watch.losses) == 4


def test_parts_that_are_given_are_used(backbone):
    adapter, loss = MMAdapter(heads=2), InfoNCE()
    module = MMAdapterModule(backbone, adapter, [loss], AllPairs(), seed=3)
    assert module.adapter is adapter
    assert list(module.objectives) == [loss]
    assert isinstance(module.pairs, AllPairs)
    assert module.seed == 3
    with pytest.raises(UserError, match="at least one objective"):
        LinearProbeModule(backbone, LinearProbe(), [])


# -- chosen by `vlmtune fit` ------------------------------------------------------------------

MODULES = sorted((ROOT / "configs/plugins/modules").glob("*.yaml"))


def named(path):
    """The class that a config of a module names."""
    return locate(yaml.safe_load(path.read_text())["class_path"])


def plain(folder, model_folder, shards, **model):
    """A config that sets backbone, data and trainer, and says nothing of a method."""
    config = copy.deepcopy({**CONFIG, "data": {"train": [{"path": str(shards)}], "batch_size": 4}})
    backbone = {"class_path": "vlmtune.backbones.open_clip.open_clip.OpenClip"}
    backbone["init_args"] = {"model": str(model_folder)}
    config["model"] = {"backbone": backbone, "store": str(folder / "store"), **model}
    config["trainer"] |= {"default_root_dir": str(folder / "run"), "max_steps": 2}
    (folder / "fit.yaml").write_text(yaml.safe_dump(config))
    return str(folder / "fit.yaml")


def test_each_module_has_one_config_that_states_its_command():
    assert sorted(map(named, MODULES), key=str) == sorted(ALL, key=str)
    for path in MODULES:
        first = path.read_text().splitlines()[0]
        assert first.startswith("# vlmtune fit --config ")
        assert first.endswith(f" --model {path.relative_to(ROOT)}")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_command_of_a_module_parses_with_the_parts_of_the_method(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = path.read_text().splitlines()[0].split()[3:]
    nulls = ["--model.backbone.init_args.pretrained=null", "--model.backbone.preprocessing", "null"]
    model = Parsed("fit", [*words, *nulls]).config["fit"].model
    assert model.class_path == f"vlmtune.training.methods.{named(path).__name__}"
    options = model.init_args
    assert (options.adapter, options.objectives, options.pairs) == (None, None, None)
    backbone = options.backbone.init_args
    assert backbone.model == "ViT-B-32-quickgelu"
    assert (backbone.pretrained, backbone.preprocessing) == (None, None)
    assert options.store == "runs/features"
    settings = told(*CONFIGS[named(path)])["optimizer"]["init_args"]
    assert options.optimizer.init_args.as_dict().items() >= settings.items()


def test_configs_without_an_optimizer_leave_the_methods(model_folder, shards, tmp_path):
    config = plain(tmp_path, model_folder, shards)
    path = str(ROOT / "configs/plugins/modules/mm_adapter.yaml")
    model = Parsed("fit", ["--config", config, "--model", path]).config["fit"].model
    assert model.init_args.optimizer is None


def marked(path):
    fast = path.stem in ("mm_adapter", "eqsim")
    return pytest.param(path, id=path.stem, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize("path", [marked(path) for path in MODULES])
def test_fit_trains_a_named_module_as_python_does(path, model_folder, shards, tmp_path):
    config = plain(tmp_path, model_folder, shards)
    sgd = ["--model.optimizer", '{"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}']
    sgd += ["--model.optimizer.init_args.weight_decay=0"]  # EqSim's YAML sets one
    assert main(["fit", "--config", config, "--model", str(path), *sgd]) == 0
    (checkpoint,) = (tmp_path / "run").rglob("*.ckpt")
    wanted = torch.load(checkpoint, weights_only=True)["state_dict"]

    made = named(path)(OpenClip(str(model_folder)), optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    before = weights(made)
    fit(made, shards, tmp_path, steps=2)
    got = weights(made)
    assert got.keys() == wanted.keys()
    assert all(value.equal(wanted[name]) for name, value in got.items())
    assert not all(value.equal(before[name]) for name, value in got.items())


@pytest.mark.slow
def test_a_named_module_resumes_exports_and_is_measured_like_any_other(
    model_folder, shards, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    cola = {"path": str(write_cola(tmp_path / "cola")), "images": str(tmp_path / "cola")}
    benchmark = {"class_path": "vlmtune.benchmarks.cola_multi.ColaMulti", "init_args": cola}
    (tmp_path / "cola.yaml").write_text(yaml.safe_dump(benchmark))
    callbacks = {
        "trainer": {
            "callbacks": [
                {
                    "class_path": "vlmtune.training.benchmark_callback.BenchmarkCallback",
                    "init_args": {"benchmarks": [benchmark]},
                },
                {
                    "class_path": "pytorch_lightning.callbacks.ModelCheckpoint",
                    "init_args": {"save_last": True, "enable_version_counter": False},
                },
            ]
        },
        "model": {
            "class_path": "vlmtune.training.methods.MMAdapterModule",
            "init_args": {"warmup": 0.0, "final_lr": 1.0},
        },
    }
    (tmp_path / "named.yaml").write_text(yaml.safe_dump(callbacks))
    words = ["--config", plain(tmp_path, model_folder, shards), "--config", "named.yaml"]
    words += ["--model.optimizer", "vlmtune.training.module.default_optimizer"]  # a function
    assert main(["fit", *words]) == 0
    report = RunReport.load(tmp_path / "run/report.json")
    assert report.provenance.adapter == "MMAdapter"
    model = report.provenance.config["fit"]["model"]
    assert model["class_path"].endswith(".MMAdapterModule")
    last = str(tmp_path / "run/checkpoints/last.ckpt")
    assert main(["export", last, "--out", "exported", "--report", "run"]) == 0
    assert main(["evaluate", "--model", "exported", "--benchmarks", "cola.yaml", "--out", "e"]) == 0
    again = RunReport.load(tmp_path / "e/report.json")
    assert again.metric("cola_multi", "accuracy") == report.metric("cola_multi", "accuracy")
    # The config that the run has written names the module, so it can be resumed from there.
    saved = str(tmp_path / "run/config.yaml")
    longer = ["--config", saved, "--trainer.max_steps=4", "--ckpt_path", last]
    assert main(["fit", *longer]) == 0
    assert torch.load(last, weights_only=True)["global_step"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model.sed=1"], "did you mean 'seed'?"),
        (["--model", "vlmtune.training.methods.MMAdaptorModule"], "MMAdaptorModule"),
        (["--model", "torch.nn.Linear"], "torch.nn.Linear"),
    ],
)
def test_a_wrong_module_or_key_is_refused_in_one_line(
    words, said, model_folder, shards, tmp_path, capsys
):
    config = plain(tmp_path, model_folder, shards)
    path = str(ROOT / "configs/plugins/modules/mm_adapter.yaml")
    assert main(["fit", "--config", config, "--model", path, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
