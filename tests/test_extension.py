"""A new adapter, that of docs/extend.md, is one file and one YAML; nothing else is edited."""

import sys

import pytest
import torch

from tests.runs import QUIET
from tests.test_readme import TEXTS, block, blocks
from tests.tiny import fit_config, halves
from vlmtune.cli.main import main
from vlmtune.evaluation.scorer import Scorer
from vlmtune.model import read_checkpoint
from vlmtune.types import ImageRef

pytestmark = QUIET

(ADAPTER,) = blocks(TEXTS["docs/extend.md"], "python", "adapter")
GATE = block("docs/extend.md", "yaml", None, "gate")
PLUGIN = GATE.replace("vlmtune.adapters.gate", "my_adapter").replace("1.0", "0.5")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The folder of the new file and its YAML."""
    (tmp_path / "my_adapter.py").write_text(ADAPTER)
    (tmp_path / "my_adapter.yaml").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_adapter", None)


def run(folder, model, shards, config="my_adapter.yaml"):
    trainer = {"max_steps": 2}
    path = fit_config(folder, model, shards, model={"adapter": config}, trainer=trainer)
    return main(["fit", "--config", str(path)])


def test_one_file_and_one_yaml_are_enough(plugin, model_folder, shards, capsys):
    assert run(plugin, model_folder, shards) == 0
    printed = capsys.readouterr()
    assert "Gate on OpenClip" in printed.err
    assert printed.out.endswith(" --out FOLDER --packages my_adapter\n")
    (checkpoint,) = (plugin / "run").rglob("*.ckpt")
    export = ["export", str(checkpoint), "--out", str(plugin / "mine"), "--packages", "my_adapter"]
    assert main(export) == 0
    assert f"vlmtune.load('{plugin}/mine', packages=['my_adapter'])" in capsys.readouterr().out
    card = (plugin / "mine/README.md").read_text()
    assert 'vlmtune.load("path/to/mine", packages=["my_adapter"])' in card
    model = read_checkpoint(checkpoint, ["my_adapter"])
    backbone, adapter = model.backbone, model.adapter
    assert adapter.spec() == {"class_path": "my_adapter.Gate", "init_args": {"initial": 0.5}}
    assert adapter.gate.ne(0.5).any()  # it has been trained
    picture = plugin / "picture.png"
    halves("red", "blue").save(picture)
    texts = ["a red cube", "a blue dog"]
    scores = Scorer(backbone, adapter)([ImageRef(picture)], texts)
    assert scores.isfinite().all()
    fresh = type(adapter)(initial=0.5)
    fresh.attach(backbone)
    plain = Scorer(backbone, fresh)([ImageRef(picture)], texts)
    assert not torch.equal(plain, scores)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("initial", "initialx", ("'initialx'", "did you mean 'initial'?")),
        ("Gate", "Gaet", ("Gaet'", "mean 'Gate'?")),
        ("0.5", "much", ("initial: ", "'float'", "much")),
        ("init_args", "init_arg", ("vlmtune.adapters.Adapter",)),
        ("0.5}", "0.5", ("Invalid content in sub-config file",)),
        (PLUGIN, "", ("'your.yaml'", "No module named 'your'")),
    ],
)
def test_a_typing_error_is_one_line(plugin, model_folder, shards, capsys, old, new, said):
    config = "my_adapter.yaml" if new else "your.yaml"
    (plugin / "my_adapter.yaml").write_text(PLUGIN.replace(old, new))
    status = run(plugin, model_folder, shards, config)
    assert status == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("vlmtune: error: expected a valid config, got: model.adapter: ")
    assert config in line
    assert all(part in line for part in said), line
    assert "loop" not in line
    assert not (plugin / "run").exists()
