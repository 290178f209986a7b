"""Winoground and VALSE on every family of backbones, by the commands that a config states.

Each model is a tiny random one of its class, so the numbers say nothing but that there are some.
"""

import math
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.backbones.kinds import KINDS
from tests.test_configs import CONFIGS, ROOT, stated
from tests.tiny import write_model
from vlmtune.backbones.base import Backbone
from vlmtune.benchmarks import Valse, Winoground
from vlmtune.config import instantiate
from vlmtune.evaluation.suite import run_suite
from vlmtune.model import load
from vlmtune.types import FeatureSpec

CONFIG = CONFIGS / "experiments/eqsim/benchmarks_families.yaml"
MODELS = [words[words.index("--model") + 1] for words in stated(CONFIG)]
OPEN_CLIP = "configs/plugins/backbones/open_clip.yaml"  # of a built-in name
POOLED = FeatureSpec("pooled")


def parts(model: str) -> dict:
    """The backbone, and the adapter if there is one, that a name on the command line means."""
    path = ROOT / (model if model.endswith(".yaml") else OPEN_CLIP)
    spec = yaml.safe_load(path.read_text())
    found = spec if "backbone" in spec else {"backbone": spec}
    return {
        key: yaml.safe_load((path.parent / part).read_text()) if isinstance(part, str) else part
        for key, part in found.items()
    }


def tiny(backbone: dict, folder: Path) -> dict:
    """The spec of a backbone with a tiny random model."""
    stem = backbone["class_path"].split(".")[-2]
    write = KINDS[stem].write
    if stem == "open_clip":  # a model with a vocabulary of a dozen words refuses the others
        write = partial(write_model, vocabulary=False)
    path = write(folder)
    return {**backbone, "init_args": {**backbone["init_args"], "model": str(path)}}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_both_benchmarks_give_numbers(model, tmp_path):
    found = parts(model)
    made = {**found, "backbone": tiny(found["backbone"], tmp_path / "model")}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(made))
    scorer = load(str(tmp_path / "model.yaml")).scorer()
    benchmarks = [Winoground.fixture(tmp_path / "winoground"), Valse.fixture(tmp_path / "valse")]
    suite = run_suite(benchmarks, scorer)
    assert suite.not_run == ()
    winoground, valse = suite.results
    assert winoground.metrics.keys() >= {"text_accuracy", "image_accuracy", "group_accuracy"}
    assert "acc_r" in valse.metrics
    for result in suite.results:
        assert all(math.isfinite(metric.value) for metric in result.metrics.values())


@pytest.mark.slow
def test_every_family_has_its_commands(tmp_path):
    """One for its embeddings where it has some, one for its matching head where it has one."""
    commands: dict[str, set[str]] = {}
    for model in MODELS:
        found = parts(model)
        adapter = found.get("adapter", {"class_path": "zero_shot"})["class_path"]
        by = "itm" if "matching" in adapter else "itc"
        by = found["backbone"]["init_args"].get("score", by)  # BLIP-2's
        commands.setdefault(found["backbone"]["class_path"], set()).add(by)
    for path in sorted((CONFIGS / "plugins/backbones").glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())
        backbone = instantiate(tiny(spec, tmp_path / path.stem), Backbone)
        if not backbone.encodes_texts:
            continue
        heads = {
            "itc": backbone.fits(POOLED, "image") is None or "score" in spec["init_args"],
            "itm": backbone.fusion is not None,
        }
        assert commands[spec["class_path"]] == {by for by, there in heads.items() if there}, path
