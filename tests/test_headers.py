"""What the commands of the configs' headers name can be made: backbone, adapter, objectives.

Each backbone is a tiny random one of its class, so that no weights are needed.
"""

from pathlib import Path

import pytest
import yaml

from tests.backbones.kinds import KINDS, PLUGINS
from tests.runs import QUIET
from tests.test_configs import (
    MODELS,
    ROOT,
    RUNS,
    STATED,
    all_values,
    bare,
    header,
    module_of,
    parsed_run,
    relative,
    stated,
)
from vlmtune.backbones.base import Backbone
from vlmtune.config import instantiate
from vlmtune.model import load

# Sizes that headers ask for: captions as long as CLIP's, and METER's rows train six fusion blocks.
OPTIONS = {"open_clip": {"text": {"context_length": 77}}, "blip": {"num_hidden_layers": 6}}
STEMS = {
    yaml.safe_load(path.read_text())["class_path"]: path.stem for path in PLUGINS.glob("*.yaml")
}

__all__ = ["bare"]  # a fixture
pytestmark = QUIET


def evaluated() -> dict[str, str]:
    """The YAMLs of models that headers evaluate, with a config that does so."""
    models = {}
    for path in (*STATED, *MODELS):
        for words in stated(path):
            if words[0] == "evaluate":
                model = words[words.index("--model") + 1]
                if model.endswith(".yaml"):
                    models[model] = relative(path)
    return models


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Returns a function that puts a tiny model in place of that of a backbone's spec."""
    folders: dict[str, Path] = {}

    def put(spec: dict) -> dict:
        stem = STEMS[spec["class_path"]]
        if stem not in folders:
            folder = tmp_path_factory.mktemp(stem) / "model"
            folders[stem] = KINDS[stem].write(folder, **OPTIONS.get(stem, {}))
        options = {**spec.get("init_args", {}), "model": str(folders[stem])}
        if stem == "open_clip":
            options["pretrained"] = None
        return {"class_path": spec["class_path"], "init_args": options}

    return put


@pytest.mark.parametrize("model", evaluated())
def test_a_model_that_a_header_evaluates_resolves(model, tiny, tmp_path):
    path = ROOT / model
    spec = yaml.safe_load(path.read_text())
    made = spec if "backbone" in spec else {"backbone": spec}
    for key, part in made.items():
        if isinstance(part, str):
            made[key] = yaml.safe_load((path.parent / part).read_text())
    made["backbone"] = tiny(made["backbone"])
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(made))
    resolved = load(str(tmp_path / "model.yaml"))
    wanted = made.get("adapter", {"class_path": "vlmtune.adapters.zero_shot.ZeroShot"})
    assert resolved.adapter.spec()["class_path"] == wanted["class_path"]
    # BLIP-2 and LLaVA have no embedding of an image: all their scores are of pairs.
    pairs = model.endswith("_itm.yaml") or "blip2" in model or "llava" in model
    assert resolved.adapter.joint == pairs


@pytest.mark.parametrize("path", MODELS, ids=relative)
def test_a_model_config_starts_with_a_command_that_evaluates_it(path):
    words = header(path)[0].split()
    assert words[:4] == ["vlmtune", "evaluate", "--model", relative(path)]
    assert yaml.safe_load(path.read_text()).keys() == {"backbone", "adapter"}


def test_a_backbone_without_embeddings_is_evaluated_by_its_matching_head_alone():
    """ViLT and BridgeTower's plug-in have none, so that zero-shot by cosine would be refused."""
    for model, path in evaluated().items():
        text = (ROOT / model).read_text()
        if "bridgetower-large-itm-mlm-itc" in text:  # it has
            continue
        if "vilt" in text.lower() or "bridgetower" in text.lower():
            assert model.endswith("_itm.yaml"), path


@pytest.mark.parametrize("path", RUNS, ids=relative)
def test_an_experiment_runs_by_the_command_it_starts_with(path, tiny, bare, monkeypatch):
    """The command parses, names data and objectives, and its adapter fits its backbone."""
    monkeypatch.chdir(bare)
    assert len(header(path)) > 1, "say below the command how long it takes and what it reaches"
    values = all_values(yaml.safe_load(path.read_text()))
    assert not [value for value in values if str(value).startswith("/")]
    config = parsed_run(path, ROOT)
    assert config["data"]["train"]
    model = config["model"].as_dict()
    assert model["objectives"]
    module = module_of(model, instantiate(tiny(model["backbone"]), Backbone))
    assert any(parameter.requires_grad for parameter in module.parameters())
