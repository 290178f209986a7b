"""The modules of the papers are `AdaptationModule` with defaults, and nothing else."""

import json
from pathlib import Path
from pydoc import locate

import pytest
import torch
import yaml
from jsonargparse._parameter_resolvers import get_signature_parameters as get_parameters

from tests.runs import QUIET, fit, same_weights, weights
from tests.test_configs import Parsed
from tests.tiny import fit_config
from vlmtune.adapters.base import Adapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.main import main
from vlmtune.config import instantiate
from vlmtune.objectives.base import Objective
from vlmtune.pairs.all_pairs import AllPairs
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


@pytest.mark.parametrize("cls", ALL)
def test_its_arguments_are_those_of_the_one_module(cls):
    own, base = (get_parameters(each, "__init__") for each in (cls, AdaptationModule))
    own, base = ({one.name: one.default for one in each} for each in (own, base))
    assert own.keys() == base.keys()  # `vlmtune fit` sees the options behind **options
    for part in PARTS:
        del own[part], base[part]
    assert own == base
    assert [name for name in vars(cls) if not name.startswith("_")] == []  # no step of its own


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
    assert isinstance(module.scores.pairs, AllPairs)
    settings = module.make_optimizer([torch.nn.Parameter(torch.ones(1))]).defaults
    assert settings.items() >= paper["optimizer"]["init_args"].items()


def test_the_learning_rate_over_flava_is_colas(model_folder):
    class Flava(OpenClip): ...

    wanted = told("cola/backbones/flava.yaml")["optimizer"]["init_args"]
    module = MMAdapterModule(Flava(str(model_folder)))
    settings = module.make_optimizer([torch.nn.Parameter(torch.ones(1))]).defaults
    assert settings.items() >= wanted.items()


# -- chosen by `vlmtune fit` ------------------------------------------------------------------

MODULES = sorted((ROOT / "configs/plugins/modules").glob("*.yaml"))


def named(path):
    return locate(yaml.safe_load(path.read_text())["class_path"])


def plain(folder, model_folder, shards):
    """A config that sets backbone, data and trainer, and says nothing of a method."""
    trainer = {"max_steps": 2, "num_sanity_val_steps": 0}
    path = fit_config(folder, model_folder, shards, trainer=trainer)
    config = json.loads(path.read_text())
    config["model"] = {"backbone": config["model"]["backbone"], "store": str(folder / "store")}
    path.write_text(json.dumps({"seed_everything": 0, **config}))
    return str(path)


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
    assert same_weights(weights(made), wanted)
    assert not same_weights(before, wanted)
