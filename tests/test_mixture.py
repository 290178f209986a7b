"""The quickstart's mixture on the rendered world, from its builders to a report."""

from pathlib import Path

import pytest
import yaml

from tests.runs import QUIET
from vlmtune.cli.main import main
from vlmtune.cli.quickstart import SHARDS
from vlmtune.report.run_report import RunReport

pytestmark = QUIET

ROOT = Path(__file__).parents[1]
QUICK = ROOT / "configs/experiments/quickstart"
SETS = {"queries": "cola", **SHARDS}
TINY = {"train": 16, "val": 0, "test": 40, "multi": 2, "ar4t_train": 8, "ar4t_test": 4}
TINY |= {"held_out": 4, "benchmarks": 2, "spar_repeats": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the configs built a tiny world and its shards."""
    folder = tmp_path_factory.mktemp("scenes")
    counts = [f"--{name}={count}" for name, count in TINY.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "checkpoints").symlink_to(ROOT / "checkpoints")
        world = ["--config", str(QUICK / "world.yaml"), "--out", "runs/quickstart/world", *counts]
        assert main(["build", "scenes", *world]) == 0
        for name, builder in SETS.items():
            words = ["--config", str(QUICK / f"{name}.yaml"), "--out", f"runs/quickstart/{name}"]
            assert main(["build", builder, *words]) == 0
    return folder


def test_a_method_trains_and_is_measured(place, tmp_path, monkeypatch):
    """The MM-Adapter; the quickstart trains grounded words."""
    monkeypatch.chdir(place)
    few = yaml.safe_load((QUICK / "benchmarks.yaml").read_text())[:4]
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few))
    config = ["--config", str(QUICK / "grounded_words.yaml"), "--model.adapter", "mm_adapter"]
    config += ["--model.adapter.init_args.text_layer=-2"]  # tokens that have passed a block
    callback = "--trainer.callbacks.BenchmarkCallback"
    config += [f"{callback}.benchmarks={tmp_path / 'few.yaml'}", f"{callback}.every_n_steps=2"]
    words = ["--trainer.max_steps=2", "--data.batch_size=4", "--data.num_workers=0"]
    assert main(["fit", *config, *words, f"--trainer.default_root_dir={tmp_path}"]) == 0
    report = RunReport.load(tmp_path / "report.json")
    names = "cola_multi_unseen cola_multi_unread cola_multi_seen wordings"
    assert [result.benchmark for result in report.results] == names.split()
