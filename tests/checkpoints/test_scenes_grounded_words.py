"""The shipped export binds colours to objects in scenes that it has not seen."""

from pathlib import Path

import yaml

from data_builders.worlds.scenes.world import ScenesBuilder
from vlmtune.cli.main import main
from vlmtune.report.run_report import RunReport

ROOT = Path(__file__).parents[2]
UNSEEN = [(("red", "blue"), ("cube", "sphere"))]


def test_it_tells_an_image_from_its_twin(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # its base model is checkpoints/scenes-clip
    counts = {"train": 0, "val": 0, "test": 40, "cogent": 0, "ar4t_train": 0, "ar4t_test": 0}
    world = ScenesBuilder(**counts, multi=40, image_size=64, min_objects=2, max_objects=3,
                          textures=["plain"], sizes=["large"], unseen=UNSEEN, seed=5)  # fmt: skip
    world.build(tmp_path / "world", progress=False)
    items = {
        "class_path": "vlmtune.benchmarks.cola_multi.ColaMulti",
        "init_args": {
            "path": str(tmp_path / "world/cola/multi_seen.json"),
            "images": str(tmp_path / "world/images/cola"),
        },
    }
    (tmp_path / "list.yaml").write_text(yaml.safe_dump([items]))
    model = str(ROOT / "checkpoints/scenes-grounded-words")
    words = ["--benchmarks", str(tmp_path / "list.yaml"), "--out", str(tmp_path / "report")]
    assert main(["evaluate", "--model", model, *words]) == 0
    (result,) = RunReport.load(tmp_path / "report/report.json").results
    assert result.metrics["accuracy"].n == 40
    assert result.metrics["accuracy"].value > 0.75
