"""Exports that come with vlmtune load by name in any folder, and score as their cards say."""

import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from data_builders.worlds.scenes.world import ScenesBuilder
from tests.tiny import cola_plugin
from vlmtune.cli.main import main
from vlmtune.export.model_card import front_matter
from vlmtune.report.run_report import RunReport

EXPORTS = ["mm-adapter", "prompts", "late-layers", "eqsim", "grounded-vectors"]
ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs/experiments/quickstart"
UNSEEN = [(("red", "blue"), ("cube", "sphere"))]
UNUSED = ("train", "val", "multi", "ar4t_train", "ar4t_test", "benchmarks", "held_out", "foils")


@pytest.fixture(scope="module")
def cola_single(tmp_path_factory):
    """The YAML of Cola's single objects on the quickstart's 300 test images, and no other image."""
    folder = tmp_path_factory.mktemp("quickstart")
    build = ["build", "scenes", "--config", str(CONFIGS / "world.yaml")]
    for name in UNUSED:
        build += [f"--{name}", "0"]
    assert main([*build, "--out", str(folder / "world")]) == 0
    text = (CONFIGS / "benchmarks.yaml").read_text().replace("runs/quickstart", str(folder))
    for spec in yaml.safe_load(text):
        if spec["init_args"].get("name") == "cola_single":
            (folder / "benchmarks.yaml").write_text(yaml.safe_dump([spec]))
    return folder / "benchmarks.yaml"


@pytest.mark.parametrize("name", EXPORTS)
def test_it_scores_what_its_card_says(name, cola_single, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without a checkpoints folder
    model = ["--model", f"published:scenes/{name}", "--device", "cpu"]
    assert main(["evaluate", *model, "--benchmarks", str(cola_single), "--out", "report"]) == 0
    (result,) = RunReport.load(Path("report/report.json")).results
    config = json.loads((ROOT / f"checkpoints/scenes-{name}/adapter_config.json").read_text())
    (stated,) = [scores for scores in config["scores"] if scores["benchmark"] == "cola_single"]
    expected = stated["metrics"]["map"]["value"]
    assert result.metrics["map"].value == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", [*EXPORTS, "grounded-words"])
def test_the_hub_shows_the_scores_of_its_card(name):
    folder = ROOT / f"checkpoints/scenes-{name}"
    text = (folder / "README.md").read_text()
    config = json.loads((folder / "adapter_config.json").read_text())
    assert text.startswith(f"---\n{front_matter(folder.name, config)}\n---\n")
    shown = ModelCard(text).data.eval_results
    (map_of,) = [result.metric_value for result in shown if result.dataset_type == "cola_single"]
    assert f"| cola_single (v1) | **map** ↑ | {100 * map_of:.1f} % |" in text


def test_grounded_words_tell_an_image_from_its_twin(tmp_path, monkeypatch):
    """In scenes that they have not seen; their export is of an earlier world."""
    monkeypatch.chdir(tmp_path)
    counts = dict.fromkeys(("train", "val", "cogent", "ar4t_train", "ar4t_test"), 0)
    scenes = {"image_size": 64, "min_objects": 2, "max_objects": 3, "unseen": UNSEEN, "seed": 5}
    plain = {"textures": ["plain"], "sizes": ["large"]}
    world = ScenesBuilder(**counts, **scenes, **plain, test=40, multi=40)
    world.build(tmp_path / "world", progress=False)
    items = cola_plugin(Path("world/cola/multi_seen.json"), images="world/images/cola")
    Path("list.yaml").write_text(yaml.safe_dump([items]))
    model = ["--model", "published:scenes/grounded-words", "--device", "cpu"]
    assert main(["evaluate", *model, "--benchmarks", "list.yaml", "--out", "report"]) == 0
    report = RunReport.load(Path("report/report.json"))
    assert report.provenance.adapter == "GroundedWords"
    accuracy = report.results[0].metrics["accuracy"]
    assert accuracy.n == 40
    assert accuracy.value > 0.75
