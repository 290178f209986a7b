"""The shipped export binds colours to objects in scenes that it has not seen."""

from pathlib import Path

import yaml

from data_builders.worlds.scenes.world import ScenesBuilder
from tests.tiny import cola_plugin
from vlmtune.cli.main import main
from vlmtune.report.run_report import RunReport

ROOT = Path(__file__).parents[2]
UNSEEN = [(("red", "blue"), ("cube", "sphere"))]


def test_it_tells_an_image_from_its_twin(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # its base model is checkpoints/scenes-clip
    counts = dict.fromkeys(("train", "val", "cogent", "ar4t_train", "ar4t_test"), 0)
    scenes = {"image_size": 64, "min_objects": 2, "max_objects": 3, "unseen": UNSEEN, "seed": 5}
    plain = {"textures": ["plain"], "sizes": ["large"]}
    world = ScenesBuilder(**counts, **scenes, **plain, test=40, multi=40)
    world.build(tmp_path / "world", progress=False)
    images = str(tmp_path / "world/images/cola")
    items = cola_plugin(tmp_path / "world/cola/multi_seen.json", images=images)
    (tmp_path / "list.yaml").write_text(yaml.safe_dump([items]))
    model = str(ROOT / "checkpoints/scenes-grounded-words")
    words = ["--benchmarks", str(tmp_path / "list.yaml"), "--out", str(tmp_path / "report")]
    assert main(["evaluate", "--model", model, *words]) == 0
    (result,) = RunReport.load(tmp_path / "report/report.json").results
    assert result.metrics["accuracy"].n == 40
    assert result.metrics["accuracy"].value > 0.75
