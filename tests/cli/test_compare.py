"""`vlmtune compare`: experiments name what is there, runs are resumed, and tables say the truth."""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from tests.forks import forked, status
from tests.refusals import command_refused, refused
from tests.runs import QUIET
from tests.test_configs import Parsed, bare, check_recipe
from tests.tiny import cola_plugin, plugin, write_cola
from vlmtune.cli import compare
from vlmtune.cli.commands import command_parser
from vlmtune.cli.compare_grid import with_grid
from vlmtune.cli.compare_jobs import Experiment, list_jobs, read_experiment
from vlmtune.cli.fit_checks import replaced
from vlmtune.cli.main import main
from vlmtune.cli.overrides import changed_lists, rewritten
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.results import MetricValue, Result
from vlmtune.training.checkpoint_files import LAST, ON_SIGNAL

ROOT = Path(__file__).parents[2]
SUITES = sorted((ROOT / "configs/experiments/compare").glob("*.yaml"))

__all__ = ["bare"]  # a fixture
pytestmark = QUIET


def covering(suite: Experiment) -> set[str]:
    """The stated rows, and as many of a product's as have every choice of each of its lists."""
    keys = [list(factor) for factor in suite.product]
    rows = set()
    for i in range(max(map(len, keys), default=0)):
        rows.add("_".join(factor[i % len(factor)] for factor in keys))
    combined = {"_".join(choice) for choice in itertools.product(*keys)}
    return rows | (set(suite.rows) - combined)


def name_given(word: str) -> str:
    """The name that the last word of a run gives its BenchmarkCallback."""
    _, items = rewritten([word])
    base = {"trainer": {"callbacks": [{"class_path": "BenchmarkCallback"}]}}
    (changed,) = changed_lists(base, items)
    (callback,) = json.loads(changed.partition("=")[2])
    return callback["init_args"]["name"]


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_suite_trains_what_its_configs_say(path, bare, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    suite = read_experiment(path)
    first, *others = list_jobs(suite, tmp_path, [3], [], None)
    check_recipe(list(first.words))
    columns = {column.split()[0] for column in suite.columns.values()}
    seen = []
    chosen = covering(suite)
    for job in others:
        *words, naming = job.words[1:]
        assert name_given(naming) == suite.rows[job.row]["name"]
        if job.row not in chosen:
            continue
        # The name changes an item of a list, for which all words are parsed twice.
        words = words if seen else [*words, naming]
        assert replaced(words) == []
        config = Parsed("fit", words).config["fit"]
        named = {config.seed_everything, config.model.seed, config.data.seed}
        assert named == {3}
        assert config.trainer.default_root_dir == str(job.folder)
        (evaluation,) = [c for c in config.trainer.callbacks if "BenchmarkCallback" in c.class_path]
        assert seen or evaluation.init_args.name == suite.rows[job.row]["name"]
        measured = {b.init_args.name for b in evaluation.init_args.benchmarks}
        assert measured >= columns if not seen else not measured
        monkeypatch.chdir(bare)  # all rows measure what the base lists, as the first does
        trained = repr((config.model, config.data, config.trainer.max_steps))
        seen.append(trained.replace(str(bare), str(ROOT)))
    assert len(set(seen)) == len(seen) > 5  # no strategy twice
    assert len({job.name for job in others}) == len({job.words for job in others}) == len(others)
    header = path.read_text().splitlines()[0]
    assert header.startswith(f"# vlmtune compare {path.relative_to(ROOT)}")


SUITE = """\
title: Toys
out: {out}
zero_shot: {{model: m, benchmarks: [b, c]}}
base: base.yaml
columns: {{"accuracy": toy accuracy}}
rows:
  one: {{name: First, configs: [one.yaml]}}
  two: {{name: Second | two, configs: [{{model: {{seed: 2}}}}]}}
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A suite of two strategies, in the folder one works in."""
    monkeypatch.chdir(tmp_path)
    callback = "vlmtune.training.benchmark_callback.BenchmarkCallback"
    base = f"trainer: {{callbacks: [{{class_path: {callback}}}]}}\nmodel: {{pairs: pairs.yaml}}\n"
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "pairs.yaml").write_text("pairs: 1\n")
    (tmp_path / "one.yaml").write_text("one: 1\n")
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE.format(out="runs"))
    return path


def options(suite: Path, **changes) -> argparse.Namespace:
    values = {"experiment": suite, "seeds": [0], "only": [], "steps": None, "out": None}
    values["grid"] = []
    return argparse.Namespace(**{**values, **changes})


class Runner:
    """Stands for `vlmtune`: writes a report whose accuracy is given by strategy and seed."""

    def __init__(self, values: dict[str, float], digest: str | None = None) -> None:
        self.values, self.digest = values, digest  # of the training data
        self.frozen = "f"  # fingerprint of the frozen model
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, words, log):
        self.commands.append(tuple(words))
        name = str(log.parent.relative_to(log.parents[2] if words[0] == "fit" else log.parents[1]))
        value = self.values[name.removesuffix("/seed-0")]
        if value < 0:
            raise UserError(f"expected {name} to train, got a toy: choose another")
        metric = MetricValue(value, 10, chance=0.25)
        seed = int(name[-1]) if words[0] == "fit" else None
        steps = {"steps": 30, "ranks": 2} if seed is not None else {}
        if self.digest is not None and seed is not None:
            steps["training_data"] = [{"records": 12, "digest": self.digest}]
        origin = ("b", "a", {}, self.frozen)
        provenance = Provenance(*origin, "", steps, {}, "c", "d", seed, 12, 12.0)
        rank = MetricValue(3.0, 10, unit="rank", higher_is_better=False)
        results = (Result("toy", "1", "accuracy", {"accuracy": metric, "rank": rank}),)
        not_run = ()
        if value > 1:
            results, not_run = (), (("toy", "an image is damaged"),)
        report = RunReport(name, provenance, results, not_run=not_run)
        report.save(log.parent / "report.json")
        if self.digest is not None and seed is not None:
            config = {"data": {"batch_size": 4}, "trainer": {"accumulate_grad_batches": 2}}
            (log.parent / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def runner():
    return Runner({"zero_shot": 0.2, "one": 0.3, "two": 0.9})


def test_means_of_seeds_stand_in_the_table(suite, capsys):
    values = {"zero_shot": 0.2, "one": 0.3, "one/seed-1": 0.5, "two": 0.9, "two/seed-1": 0.8}
    runner = Runner(values, digest="old")
    compare.run(options(suite, seeds=[1, 0], only=["one"]), runner)
    compare.run(options(suite, seeds=[1]), runner)
    compare.run(options(suite), runner)
    table = Path("runs/compare.md").read_text()
    # 12 records, 30 steps of 8 of them on each of two ranks in 12 seconds
    assert table.splitlines()[2:] == [
        "| strategy | trainable parameters | accuracy | s/epoch |",
        "| --- | ---: | ---: | ---: |",
        "| chance |  | 25.0 % |  |",
        "| zero-shot | 12 | 20.0 % | – |",
        "| First | 12 | 40.0 % (30.0 % / 50.0 %) | 0.3 |",
        "| Second \\| two | 12 | 85.0 % (90.0 % / 80.0 %) | 0.3 |",
    ]
    assert table in capsys.readouterr().out
    assert Path("runs/compare.csv").read_text().splitlines()[:3] == [
        "strategy,trainable parameters,accuracy,s/epoch",
        "chance,,25.0 %,",
        "zero-shot,12,20.0 %,–",
    ]
    rows = json.loads(Path("runs/compare.json").read_text())["rows"]
    assert [run["values"]["accuracy"] for run in rows["one"]["runs"]] == [0.3, 0.5]
    assert [run["seed"] for run in rows["two"]["runs"]] == [0, 1]
    assert rows["two"]["runs"][0]["seconds_per_epoch"] == pytest.approx(12 * 12 / (30 * 16))
    # A seed that was trained on other shards is no repetition.
    runner.values["two/seed-2"] = 0.7
    runner.digest = "new"
    with refused(
        "training data in all seeds of two, got others in runs/two/seed-2 than in runs/two/seed-0"
    ):
        compare.run(options(suite, seeds=[2], only=["two"]), runner)
    # Nor is one on another frozen model.
    runner.values["one/seed-2"] = 0.7
    runner.digest, runner.frozen = "old", "g"
    with refused("frozen model in all seeds of one, got others in runs/one/seed-2"):
        compare.run(options(suite, seeds=[2], only=["one"]), runner)


def test_a_run_without_a_number_leaves_the_others_in_the_table(suite, capsys):
    runner = Runner({"zero_shot": 0.2, "one": 2.0, "two": 0.9, "one/seed-1": 0.5})
    suite.write_text(suite.read_text().replace("toy accuracy}", "toy accuracy, rank: toy rank}"))
    compare.run(options(suite), runner)
    compare.run(options(suite, seeds=[1], only=["one"]), runner)
    assert "runs/one/seed-0: toy not run: an image is damaged" in capsys.readouterr().err
    lines = Path("runs/compare.md").read_text().splitlines()
    assert lines[-2:] == [
        "| First | 12 | – | – | – |",
        "| Second \\| two | 12 | 90.0 % | 3.00 | – |",
    ]


def test_products_and_grids_are_rows_with_folders_of_their_own(suite):
    product = """product:
  - a: {name: A, configs: [one.yaml]}
    b: {name: B, configs: []}
  - x: {name: X, configs: [{model: {seed: 3}}]}
"""
    suite.write_text(suite.read_text() + product)
    rows = read_experiment(suite).rows
    assert list(rows) == ["one", "two", "a_x", "b_x"]
    assert rows["a_x"] == {"name": "A, X", "configs": ["one.yaml", {"model": {"seed": 3}}]}
    assert rows["b_x"] == {"name": "B, X", "configs": [{"model": {"seed": 3}}]}
    experiment = with_grid(read_experiment(suite), ["a.path=x/y,x-y,x y"])
    assert len(experiment.rows) == 12
    assert not any("/" in row for row in experiment.rows)
    lists = with_grid(read_experiment(suite), ["a.betas=[0.9,0.99],[0.8,0.9]"]).rows
    assert {row["words"][0] for row in lists.values()} == {
        "--a.betas=[0.9,0.99]",
        "--a.betas=[0.8,0.9]",
    }
    nested = with_grid(read_experiment(suite), ['a.parts=[{"x": 1}, {"y": 2}],[[1,2],[3]]']).rows
    assert {row["words"][0] for row in nested.values()} == {
        '--a.parts=[{"x": 1}, {"y": 2}]',
        "--a.parts=[[1,2],[3]]",
    }
    # `fit` would take quotes around a whole value for a part of it.
    quoted = with_grid(read_experiment(suite), ["a.x=\"b, c\",dog's,['d]',e]"]).rows
    assert {row["words"][0] for row in quoted.values()} == {
        "--a.x=b, c",
        "--a.x=dog's",
        "--a.x=['d]',e]",
    }
    suite.write_text(suite.read_text().replace("name: First", 'name: "LoRA: r=8"'))
    (run,) = list_jobs(read_experiment(suite), Path("out"), [0], ["one"], None)
    assert run.words[-1].endswith('BenchmarkCallback.name="LoRA: r=8"')
    more = suite.read_text().replace("- x: ", "- x: {name: Y, configs: []}\n    b_x: ")
    suite.write_text(more.replace("    b: ", "    a_b: {name: Z, configs: []}\n    b: "))
    with refused("expected keys in product that make new rows, got 'a_b_x' twice"):
        read_experiment(suite)
    given = ["compare", "suite.yaml", "--grid", "a=1,2", "b=3", "--grid", "c=4"]
    assert command_parser().parse_args(given).grid == ["a=1,2", "b=3", "c=4"]


def test_a_grid_trains_each_strategy_with_each_combination(suite):
    grid = ["model.optimizer.init_args.lr=0.001,0.01", "--data.batch_size=20,40"]
    names = [f"lr-{lr}_batch_size-{size}" for lr in ("0.001", "0.01") for size in (20, 40)]
    values = {f"{row}_{name}": i / 10 for row in ("one", "two") for i, name in enumerate(names)}
    values |= {f"two_{name}/seed-1": 0.5 for name in names}
    runner = Runner({"zero_shot": 0.2, **values})
    compare.run(options(suite, grid=grid), runner)
    assert len(runner.commands) == 9
    words = [word for word in runner.commands[2] if word.startswith(("--model", "--data"))]
    assert words == ["--model.optimizer.init_args.lr=0.001", "--data.batch_size=40"]
    table = Path("runs-grid/compare.md").read_text()
    assert "| First, lr 0.01, batch_size 40 | 12 | 30.0 % | – |" in table
    # Run again, everything is there; one strategy alone is all of its combinations.
    compare.run(options(suite, grid=grid), runner)
    assert len(runner.commands) == 9
    compare.run(options(suite, grid=grid, only=["two"], seeds=[1]), runner)
    assert len(runner.commands) == 13
    # Another grid in the same folder adds its points.
    runner.values["two_lr-0.1"] = 0.7
    compare.run(options(suite, grid=["model.optimizer.init_args.lr=0.1"], only=["two"]), runner)
    table = Path("runs-grid/compare.md").read_text()
    assert "| Second \\| two, lr 0.1 | 12 | 70.0 % | – |" in table
    assert "| First, lr 0.01, batch_size 40 | 12 | 30.0 % | – |" in table
    # A grid over the steps keeps its points, too, with the order of their seeds.
    for seed in (2, 3, 10):
        runner.values[f"two_max_steps-10/seed-{seed}"] = seed / 100
    runner.values["two_max_steps-20"] = 0.22
    for steps, seeds in ((10, [2, 3, 10]), (20, [0])):
        grid = [f"trainer.max_steps={steps}"]
        compare.run(options(suite, grid=grid, only=["two"], seeds=seeds), runner)
    table = Path("runs-grid/compare.md").read_text()
    assert "two, max_steps 10 | 12 | 5.0 % (2.0 % / 3.0 % / 10.0 %) |" in table
    # Shorter runs in the same folder have a table of their own.
    runner.values["two_c-1"] = 0.4
    changes = {"steps": 5, "out": Path("runs-grid")}
    compare.run(options(suite, grid=["b.c=1"], only=["two"], **changes), runner)
    table = Path("runs-grid/compare.md").read_text()
    assert "two, c 1 | 12 | 40.0 %" in table
    assert "max_steps" not in table
    # Points that were measured with other settings do not stand beside new ones.
    Path("one.yaml").write_text("one: 2\n")
    runner.values["one_lr-0.2"] = 0.6
    grid = ["model.optimizer.init_args.lr=0.2"]
    compare.run(options(suite, grid=grid, only=["one"]), runner)
    table = Path("runs-grid/compare.md").read_text()
    assert "| First, lr 0.2 | 12 | 60.0 % | – |" in table
    assert "First, lr 0.01" not in table
    assert "| Second \\| two, lr 0.1 | 12 | 70.0 % | – |" in table
    suite.write_text(suite.read_text().replace("seed: 2", "seed: 3"))
    compare.run(options(suite, grid=grid, only=["one"]), runner)
    assert "two, lr 0.1" not in Path("runs-grid/compare.md").read_text()


def test_runs_that_were_measured_on_other_items_share_no_table(suite, runner):
    compare.run(options(suite), runner)
    before = Path("runs/compare.md").read_text()
    path = Path("runs/two/seed-0/report.json")
    report = RunReport.load(path)
    (result,) = report.results
    replace(report, results=(replace(result, items_digest="new"),)).save(path)
    compare.run(options(suite), runner)  # the items of the others are not known
    path = Path("runs/one/seed-0/report.json")
    replace(report, results=(replace(result, items_digest="old"),)).save(path)
    with refused("got others in runs/two/seed-0 than in runs/one/seed-0: remove the folder"):
        compare.run(options(suite), runner)
    assert Path("runs/compare.md").read_text() == before


def test_a_row_may_name_json_and_the_untrained_model_options_of_any_kind(suite, runner):
    Path("one.json").write_text('{"one": 1}')
    options_of_m = "model: m, download: true, batch_size: 8, benchmarks: [b, c]"
    text = suite.read_text().replace("one.yaml", "one.json")
    suite.write_text(text.replace("model: m, benchmarks: [b, c]", options_of_m))
    compare.run(options(suite), runner)
    untrained = " ".join(runner.commands[0])
    said = "evaluate --model m --download --batch_size 8 --benchmarks b c --name"
    assert untrained.startswith(said)
    Path("one.json").write_text('{"one": 2}')
    with refused("expected all runs to finish, 1 of 3 failed"):
        compare.run(options(suite), runner)


@pytest.mark.parametrize("wrong", ["lr", "lr=", "=1", "lr=1,", "lr=1,1", "seed_everything=1"])
def test_a_wrong_grid_is_one_line(suite, wrong):
    with refused("expected KEY=VALUE,VALUE,... with --grid"):
        compare.run(options(suite, grid=[wrong]), Runner({}))


def test_what_is_done_is_not_done_again_and_what_was_stopped_goes_on(suite, runner):
    compare.run(options(suite, only=["one"]), runner)
    assert len(runner.commands) == 1
    checkpoint = Path("runs/two/seed-0/checkpoints/last.ckpt")
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    compare.run(options(suite), runner)
    zero_shot, two = runner.commands[1:]
    assert zero_shot[0] == "evaluate"
    assert two[-2:] == ("--ckpt_path", str(checkpoint))
    compare.run(options(suite, only=["two"]), runner)
    assert len(runner.commands) == 3
    assert "First" in Path("runs/compare.md").read_text()  # the table is of the whole folder
    # Nor is it if the folder has moved.
    Path("runs").rename("moved")
    compare.run(options(suite, out=Path("moved")), runner)
    assert len(runner.commands) == 3


def test_a_run_that_a_signal_stopped_goes_on_from_there(suite, runner):
    last, on_signal = (Path("runs/one/seed-0") / name for name in (LAST, ON_SIGNAL))
    last.parent.mkdir(parents=True)
    specs = {"version": 1, "fingerprint": "f"} | dict.fromkeys(["backbone", "adapter"], plugin("x"))
    for path, step in ((last, 30), (on_signal, 40)):
        torch.save({"vlmtune": specs, "state_dict": {}, "global_step": step}, path)
    os.utime(on_signal, (1, 1))  # the clock was set back before the run was stopped
    compare.run(options(suite, only=["one"]), runner)
    assert runner.commands[0][-2:] == ("--ckpt_path", str(on_signal))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_as_well(number, tmp_path):
    """The run traps SIGTERM, as `fit` does to write its checkpoint.

    Shells start background jobs with SIGINT ignored, so the call takes it back.
    """
    child = tmp_path / "child.sh"
    child.write_text(
        "#!/bin/sh\ntrap 'sleep 0.3; echo written >&2; exit 143' TERM\ntrap '' INT\n"
        "echo started >&2\nwhile true; do sleep 0.1; done\n"
    )
    child.chmod(0o755)
    log = tmp_path / "log.txt"

    def call():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.executable = str(child)
        try:
            compare.run_process(["fit"], log)
        except KeyboardInterrupt:
            return 130

    calling = forked(call, log=tmp_path / "calling.txt")
    for _ in range(600):
        if log.is_file() and "started" in log.read_text():
            break
        time.sleep(0.1)
    os.kill(calling.pid, number)
    try:
        assert status(calling) == (143 if number == signal.SIGTERM else 130)
    finally:
        calling.kill()
    assert log.read_text().split() == ["started", "written"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_run_starts_leaves_no_run_behind(number, tmp_path, monkeypatch):
    started = []

    class Slow(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(["sleep", "60"])
            started.append(self)
            signal.raise_signal(number)  # before anybody has the process

    monkeypatch.setattr(subprocess, "Popen", Slow)
    # A shell that starts the tests in the background ignores Ctrl-C for them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            compare.run_process(["fit"], tmp_path / "log.txt")
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].poll() is not None


def test_calls_at_the_same_time_share_the_runs(suite, capsys):
    """The second call starts while the first trains strategy one."""
    values = {"zero_shot": 0.2, "one": 0.3, "two": 0.9}
    first, second = Runner(values), Runner(values)

    def run(words, log):
        if log.parent.parent.name == "one":
            compare.run(options(suite), second)
            assert "First" not in Path("runs/compare.md").read_text()
        first(words, log)

    compare.run(options(suite), run)
    assert [words[0] for words in first.commands] == ["evaluate", "fit"]
    (two,) = second.commands
    assert "--trainer.default_root_dir=runs/two/seed-0" in two
    table = Path("runs/compare.md").read_text()
    assert "First" in table
    assert "Second" in table
    assert capsys.readouterr().out.count("another call is running it") == 1


def test_a_run_on_data_that_were_built_again_is_not_done(suite, shards, tmp_path, capsys):
    folder = shutil.copytree(shards, tmp_path / "built")
    runner = Runner({"zero_shot": 0.2, "one": 0.3}, ShardSet(str(folder)).digest())
    compare.run(options(suite, only=["one"]), runner)
    path = Path("runs/one/seed-0/report.json")
    report = RunReport.load(path)
    replace(report, provenance=replace(report.provenance, data=str(folder))).save(path)
    compare.run(options(suite, only=["one"]), runner)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with refused("1 of 1 failed"):
        compare.run(options(suite, only=["one"]), runner)
    said = f"expected in runs/one/seed-0 a run of the same training data, got another ({folder})"
    assert said in capsys.readouterr().err
    shutil.rmtree(folder)
    compare.run(options(suite, only=["one"]), runner)
    assert len(runner.commands) == 1


def test_a_changed_config_or_yaml_that_it_names_is_another_run(suite, capsys, runner):
    Path("own").mkdir()
    Path("own/one.yaml").write_text("pairs: pairs.yaml\n")  # the one in its own folder
    Path("own/pairs.yaml").write_text("pairs: 1\n")
    suite.write_text(suite.read_text().replace("one.yaml", "own/one.yaml"))
    compare.run(options(suite), runner)
    for changed, old, new, failed in (
        ("own/one.yaml", "pairs:", "other:", ["one"]),
        ("own/pairs.yaml", "1", "2", ["one"]),
        ("suite.yaml", "seed: 2", "seed: 3", ["two"]),
        ("pairs.yaml", "1", "2", ["one", "two"]),  # of the base
    ):
        before = Path(changed).read_text()
        Path(changed).write_text(before.replace(old, new))
        with refused(f"{len(failed)} of 3 failed"):
            compare.run(options(suite), runner)
        Path(changed).write_text(before)
        said = re.findall("in runs/(.*)/seed-0 a run of the same comm", capsys.readouterr().err)
        assert said == failed
    assert "First" not in Path("runs/compare.md").read_text()
    assert len(runner.commands) == 3


def test_a_run_that_fails_does_not_stop_the_others(suite, capsys):
    runner = Runner({"zero_shot": 0.2, "one": -1, "two": 0.9})
    with refused("1 of 3 failed"):
        compare.run(options(suite), runner)
    assert "expected one/seed-0 to train" in capsys.readouterr().err
    table = Path("runs/compare.md").read_text()
    assert "Second" in table
    assert "First" not in table
    # Nothing was trained, so a mended config runs in the same folder.
    Path("one.yaml").write_text("one: 2\n")
    runner.values["one"] = 0.5
    compare.run(options(suite), runner)
    assert "| First | 12 | 50.0 % |" in Path("runs/compare.md").read_text()


def test_a_date_in_a_row_is_a_text(suite):
    suite.write_text(suite.read_text().replace("seed: 2", "tags: [2026-11-29]"))
    (run,) = list_jobs(read_experiment(suite), Path("out"), [0], ["two"], None)
    assert '{"model": {"tags": ["2026-11-29"]}}' in run.words


def test_a_base_measures_its_runs(suite):
    Path("base.yaml").write_text("trainer: {max_steps: 1}\n")
    with refused("expected one BenchmarkCallback in trainer.callbacks of base.yaml, got 0"):
        read_experiment(suite)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: Toys\n", "", "nothing at title"),
        ("rows:", "rows: {}\nrow:", "got the unknown key 'row' at the top"),
        ("toy accuracy", "toy", "toy. at columns/accuracy"),
        ("name: First, ", "", "nothing at rows/one/name"),
        ("one:", "a/b:", "a/b"),
        ("[one.yaml]", "[3]", "3 at rows/one/configs/0"),
        ("title", "{", "YAML|Parser|mapping"),
    ],
)
def test_a_wrong_suite_is_one_line(suite, capsys, old, new, said):
    suite.write_text(suite.read_text().replace(old, new))
    with refused(said):
        read_experiment(suite)
    (_,) = command_refused(capsys, ["compare", suite])


def test_an_unknown_strategy_and_a_wrong_column_are_refused(suite, tmp_path, runner):
    made = read_experiment(suite)
    with refused("zero_shot, one, two, got three"):
        list_jobs(made, tmp_path, [0], ["three"], None)
    suite.write_text(suite.read_text().replace("toy accuracy", "toy accuracy2"))
    with refused("expected accuracy2 of toy in .*: name another metric, such as accuracy, or eval"):
        compare.run(options(suite), runner)


def test_a_failing_process_leaves_its_last_line(tmp_path, monkeypatch):
    """A shell stands for Python, which takes seconds to import torch."""
    child = tmp_path / "child.sh"
    child.write_text('#!/bin/sh\necho first >&2\necho "last of $*" >&2\nexit 2\n')
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    log = tmp_path / "log.txt"
    with refused("got 'last of -m vlmtune report none': see .*log.txt"):
        compare.run_process(["report", "none"], log)
    child.write_text("#!/bin/sh\necho again\nkill -9 $$\n")
    with refused("got 'again': see .*log.txt"):
        compare.run_process(["report", "none"], log)
    assert log.read_text().startswith("first\n")  # a run that goes on adds to its log


def test_a_strategy_is_trained_by_the_same_code_as_fit(tmp_path, monkeypatch, model_folder, shards):
    """The whole way for two steps, in this process."""
    monkeypatch.chdir(tmp_path)
    cola = write_cola(tmp_path / "cola")
    Path("benchmarks.yaml").write_text(yaml.safe_dump([cola_plugin(cola, name="cola")]))
    base = yaml.safe_load((ROOT / "configs/experiments/compare/cola/base.yaml").read_text())
    evaluation = {"benchmarks": "benchmarks.yaml", "every_n_epochs": 1}
    callback = plugin("training.benchmark_callback.BenchmarkCallback", **evaluation)
    base["trainer"] |= {"accelerator": "cpu", "callbacks": [callback]}
    backbone = plugin("backbones.open_clip.OpenClip", model=str(model_folder))
    base["model"] |= {"backbone": backbone, "store": None}
    base["data"] |= {"train": [{"path": str(shards)}], "batch_size": 4}
    Path("base.yaml").write_text(yaml.safe_dump(base))
    rows = yaml.safe_load((ROOT / "configs/experiments/compare/cola.yaml").read_text())["rows"]
    content = {
        "title": "Tiny",
        "out": "runs",
        "zero_shot": {"model": str(model_folder), "benchmarks": "benchmarks.yaml"},
        "base": "base.yaml",
        "columns": {"accuracy": "cola accuracy"},
        "rows": {"linear_probe": rows["linear_probe"]},
    }
    Path("suite.yaml").write_text(yaml.safe_dump(content))

    def run(words, log):
        del log
        assert main(list(words)) == 0

    compare.run(options(Path("suite.yaml"), steps=2), run)
    rows = json.loads(Path("runs-2-steps/compare.json").read_text())["rows"]
    assert set(rows) == {"zero_shot", "linear_probe"}
    (probe_run,) = rows["linear_probe"]["runs"]
    assert probe_run["seconds_per_epoch"] > 0
    assert rows["linear_probe"]["trainable_parameters"] == 2 * (16 * 16 + 16) + 2
    report = RunReport.load(Path("runs-2-steps/linear_probe/seed-0/report.json"))
    assert report.name == "linear probe"
    assert report.provenance.config["steps"] == 2
