"""Sweeps: what a W&B agent runs for a trial is a run of ours, and W&B works without a network."""

import itertools
import math
import multiprocessing
import os
import random
import shutil
import sys
from pathlib import Path
from pydoc import locate
from unittest import mock

import pytest
import torch
import wandb
import yaml
from pytorch_lightning.loggers import WandbLogger

from tests.runs import QUIET, quiet_trainer
from tests.test_configs import Parsed, header
from tests.tiny import cola_plugin, keeping, plugin, write_cola
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.main import main
from vlmtune.data.shards import ShardSet
from vlmtune.model import load
from vlmtune.training.wandb_runs import continue_runs

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "configs/sweeps").rglob("*.yaml"))
CORPORA = sorted((ROOT / "configs/sweeps/corpora").glob("*.yaml"))
BENCHMARKS = ("cola_multi_unseen", "cola_multi_seen")

pytestmark = [
    *QUIET,
    # Left behind by W&B's own process and log files.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb.*"),
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "configs/sweeps").with_suffix(""))


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """W&B that asks nobody and writes below the test's folder."""
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("DIR", str(tmp_path))):
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield
    wandb.teardown()


def draw(parameter: dict, rng: random.Random) -> object:
    """One value of a sweep's parameter, as W&B's random search would."""
    if "value" in parameter:
        return parameter["value"]
    if "values" in parameter:
        return rng.choice(parameter["values"])
    assert parameter["distribution"] == "log_uniform_values"
    return rng.uniform(parameter["min"], parameter["max"])


def words(sweep: dict, seed: int = 0) -> list[str]:
    """The command of a trial: W&B's own expansion of one draw."""
    rng = random.Random(seed)
    return expanded(sweep, {name: draw(value, rng) for name, value in sweep["parameters"].items()})


def expanded(sweep: dict, values: dict) -> list[str]:
    # Imported here: it takes seconds, which each process would take that collects tests.
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    drawn = {name: {"value": value} for name, value in values.items()}
    arguments = create_sweep_command_args({"args": drawn})["args"]
    command = create_sweep_command(list(sweep["command"]))
    assert command.count("${args}") == 1
    at = command.index("${args}")
    return [*command[:at], *arguments, *command[at + 1 :]]


@pytest.mark.parametrize("path", SWEEPS, ids=name)
def test_a_trial_is_a_run_with_the_values_drawn(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert header(path)[0] == f"wandb sweep --project vlmtune {path.relative_to(ROOT)}"
    sweep = yaml.safe_load(path.read_text())
    assert "method" in sweep
    assert set(sweep["metric"]) == {"name", "goal"}
    command = words(sweep)
    assert command[:2] == ["vlmtune", "fit"]
    folder = f"runs/sweeps/{name(path)}"
    assert f"--trainer.default_root_dir={folder}" in command  # no other sweep's
    metric = sweep["metric"]["name"]
    assert header(path)[1] == f"vlmtune report {folder} --metric {metric} --out {folder}-report"
    config = Parsed("fit", command[2:]).config["fit"]
    for key, value in (word[2:].split("=", 1) for word in command if "=" in word):
        if key.startswith("model.objectives."):
            continue  # of the last objective, see the grid of EqSim below
        if key == "config":
            train = yaml.safe_load(Path(value).read_text())["data"]["train"]
            assert [data.init_args.path for data in config.data.train] == [d["path"] for d in train]
            continue
        found, drawn = config[key], yaml.safe_load(value)
        wanted = drawn["class_path"] if isinstance(drawn, dict) else drawn
        assert str(getattr(found, "class_path", found)) == str(wanted), key
    callbacks = [callback.init_args for callback in config.trainer.callbacks]
    measured = [b for c in callbacks for b in c.get("benchmarks", ())]
    names = {f"{b.init_args.name}/{locate(b.class_path).primary_metric}" for b in measured}
    assert metric in names


@pytest.mark.parametrize("path", ["eqsim.yaml", "corpora/eqsim.yaml"])
def test_eqsims_grid_is_of_one_alpha_and_one_beta(path, monkeypatch):
    """Every value of the paper's appendix C in some point, and arguments in two orders."""
    monkeypatch.chdir(ROOT)
    sweep = yaml.safe_load((ROOT / "configs/sweeps" / path).read_text())
    assert sweep["method"] == "grid"
    choices = {name: parameter["values"] for name, parameter in sweep["parameters"].items()}
    if "config" in choices:  # each corpus has the same grid
        del choices["config"][1:]
    v1 = ("distant", "all") if path.startswith("corpora") else ("all",)
    assert math.prod(map(len, choices.values())) == len(v1) * 3 * 3
    points = []
    for number in range(3):
        values = [(name, given[number % len(given)]) for name, given in choices.items()]
        # W&B gives arguments in any order. Those of the first and last point are no defaults.
        order = values if number else values[::-1]
        config = Parsed("fit", expanded(sweep, dict(order))[2:]).config["fit"]
        info_nce, eqsim = config.model.objectives
        assert info_nce.class_path.endswith("InfoNCE")
        arguments = eqsim.init_args
        assert (arguments.v2, arguments.k) == ("close", 8)
        assert arguments.alpha1 == arguments.alpha2
        points.append((arguments.v1, arguments.alpha1, arguments.weight))
    grid = zip(itertools.cycle(v1), (0.0, 0.04, 0.1), (0.2, 0.5, 1.0), strict=False)
    assert points == list(grid)


def test_each_sweep_of_the_corpora_is_of_a_method_on_every_corpus():
    data = sorted((ROOT / "configs/experiments/corpora/data").glob("*.yaml"))
    for path in CORPORA:
        sweep = yaml.safe_load(path.read_text())
        assert f"configs/experiments/corpora/methods/{path.stem}.yaml" in sweep["command"]
        corpora = sweep["parameters"]["config"]["values"]
        assert sorted(corpora) == [str(file.relative_to(ROOT)) for file in data]


def tiny(folder: Path, model: Path, shards: Path) -> list[str]:
    """Arguments that put the tiny model and corpus in place of the quickstart's."""
    cola = write_cola(folder / "cola")
    specs = [cola_plugin(cola, name=name) for name in BENCHMARKS]
    evaluation = {"benchmarks": specs, "every_n_steps": 1, "store": None}
    # As the config has them, so what is not said here stays what it is there.
    callbacks = [
        plugin("training.benchmark_callback.BenchmarkCallback", **evaluation),
        keeping(every_n_train_steps=1, dirpath=None),
    ]
    changes = {
        "trainer": {
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "log_every_n_steps": 1,
            "default_root_dir": str(folder / "root"),
            "callbacks": callbacks,
        },
        "model": {"store": None},
        "data": {"train": [{"path": str(shards)}], "batch_size": 4},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(changes))
    return [
        "--config",
        str(folder / "tiny.yaml"),
        f"--model.backbone.init_args.model={model}",
        "--trainer.max_steps=2",
        f"--trainer.logger.init_args.save_dir={folder / 'wandb'}",
    ]


def test_a_trial_trains_and_is_logged_without_a_network(
    tmp_path, monkeypatch, model_folder, shards, capfd
):
    monkeypatch.chdir(ROOT)
    sweep = yaml.safe_load((ROOT / "configs/sweeps/mm_adapter.yaml").read_text())
    trial = [*words(sweep)[1:], *tiny(tmp_path, model_folder, shards)]
    chosen = {"monitor": "step", "mode": "min", "save_top_k": 1}  # the first step is the best
    trial += [f"--trainer.callbacks.ModelCheckpoint.{key}={chosen[key]}" for key in chosen]
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")  # both as an agent sets them
    monkeypatch.setenv("WANDB_RUN_ID", "trial7")
    drawn = {"wandb_version": 1, "model.optimizer.init_args.lr": {"value": 0.00312345}}
    (tmp_path / "drawn.yaml").write_text(yaml.safe_dump(drawn))
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(tmp_path / "drawn.yaml"))
    logged: set[str] = set()
    exports = {}
    log_artifact = wandb.Run.log_artifact

    def kept(run, artifact, *rest, **options):
        if artifact.type == "model":
            exports[tuple(options["aliases"])] = artifact
        origins.append(run.config["started_from"]["backbone"])
        runs.append((run.name, run.group, run.job_type))
        return log_artifact(run, artifact, *rest, **options)

    runs: list[tuple[str, str, str]] = []
    origins: list[dict[str, str]] = []
    monkeypatch.setattr(wandb.Run, "log_artifact", kept)
    log = wandb.Run.log

    def noted(run, data, *rest, **options):
        logged.update(data)
        log(run, data, *rest, **options)

    monkeypatch.setattr(wandb.Run, "log", noted)
    assert main(trial) == 0, capfd.readouterr().err
    wandb.finish()
    assert {sweep["metric"]["name"], "train/loss", "items"} <= logged
    # Named by what was drawn, grouped by what was trained; the export says of which shards it is.
    assert {*runs} == {("lr 0.00312", "MMAdapter", "fit")}
    assert {aliases: one.metadata["step"] for aliases, one in exports.items()} == {
        ("best",): 1,
        ("last",): 2,
    }
    export = exports["last",]
    assert {*export.manifest.entries} == {"README.md", "adapter.safetensors", "adapter_config.json"}
    assert export.metadata["data"] == {str(shards): ShardSet(str(shards)).digest()}
    checkpoint = tmp_path / "root/trial7/checkpoints/last.ckpt"  # not in the logger's folder
    assert export.metadata["digest"] == load(str(checkpoint)).digest()
    fingerprint = OpenClip(str(model_folder)).fingerprint
    assert origins[0] == {"name": str(model_folder), "digest": fingerprint}
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["trial7"]
    assert {"report.json", "config.yaml"} <= {p.name for p in (tmp_path / "root/trial7").iterdir()}
    assert not (tmp_path / "wandb/config.yaml").exists()  # all trials share that folder
    (run,) = (tmp_path / "wandb" / "wandb").glob("offline-run-*")
    assert next(iter(run.glob("*.wandb"))).stat().st_size > 0
    assert "trial7" in run.name


def runs_of(folder: Path) -> set[str]:
    # offline-run-<time>-<id>, and -1 behind it if a run of this id began in the same second.
    return {run.name.split("-")[3] for run in folder.glob("wandb/wandb/offline-run-*")}


def test_a_resumed_training_continues_its_wandb_run(
    tmp_path, monkeypatch, model_folder, shards, capfd
):
    monkeypatch.chdir(ROOT)
    sweep = yaml.safe_load((ROOT / "configs/sweeps/mm_adapter.yaml").read_text())
    trial = [*words(sweep)[1:], *tiny(tmp_path, model_folder, shards)]
    assert main(trial) == 0, capfd.readouterr().err
    wandb.finish()
    assert "anonymous" not in capfd.readouterr().err  # a warning of what Lightning passes
    (first,) = runs_of(tmp_path)
    last = tmp_path / "root/checkpoints/last.ckpt"
    resumed = [*trial, "--trainer.max_steps=3", "--ckpt_path"]
    assert main([*resumed, str(last)]) == 0, capfd.readouterr().err
    wandb.finish()
    assert runs_of(tmp_path) == {first}
    # A job of Slurm finds its checkpoint itself; a chosen id is used.
    shutil.copy(last, tmp_path / "root" / "hpc_ckpt_1.ckpt")
    chosen = ["--trainer.logger.init_args.id=chosen"]
    assert main([*resumed, "hpc", "--trainer.max_steps=4"]) == 0, capfd.readouterr().err
    wandb.finish()
    assert main([*resumed, "hpc", "--trainer.max_steps=4", *chosen]) == 0, capfd.readouterr().err
    assert runs_of(tmp_path) == {first, "chosen"}
    # Of several loggers each continues its own run.
    content = torch.load(last, weights_only=True) | {"wandb_runs": ["chosen", "second"]}
    torch.save(content, last)
    loggers = [WandbLogger(id="chosen"), WandbLogger()]
    continue_runs(quiet_trainer(logger=loggers), str(last))
    assert [logger.version for logger in loggers] == ["chosen", "second"]


# Agents of W&B run trials; the test answers in place of W&B's server.


def work(folder: Path, sweep: dict, trials: list[str], name: str) -> None:
    """Runs an agent of W&B in this process, which gets these trials one after the other."""
    from wandb.apis.public import sweeps
    from wandb.wandb_agent import Agent

    rng = random.Random(name)
    waiting, text = list(trials), yaml.safe_dump(sweep)

    def heartbeat(api, agent, metrics, running):
        if running or not waiting:
            return []
        drawn = {key: {"value": draw(value, rng)} for key, value in sweep["parameters"].items()}
        return [{"type": "run", "run_id": waiting.pop(0), "program": None, "args": drawn}]

    with (
        mock.patch.object(wandb, "Api", object),
        mock.patch.object(sweeps, "_sweep_with_runs", return_value={"config": text}),
        mock.patch.object(sweeps, "_register_agent", return_value={"id": name}),
        mock.patch.object(sweeps, "_agent_heartbeat", heartbeat),
        mock.patch.object(Agent, "POLL_INTERVAL", 0.2),
    ):
        agent = Agent(object(), multiprocessing.Queue(), sweep_id="sweep", count=len(trials))
        agent.run()
    (folder / name).write_text(f"{agent._finished} {agent._failed}")


@pytest.mark.slow
def test_trials_of_two_agents_are_a_run_each_and_end_in_one_table_and_one_export(
    tmp_path, monkeypatch, model_folder, shards, capsys
):
    """One agent runs two trials, the other one on two ranks."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    sweep = yaml.safe_load((ROOT / "configs/sweeps/mm_adapter.yaml").read_text())
    sweep["command"] += tiny(tmp_path, model_folder, shards)
    ranks = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    on_two_ranks = {**sweep, "command": [*sweep["command"], *ranks]}
    names = [f"trial{i}" for i in range(3)]
    forked = multiprocessing.get_context("fork")
    agents = []
    for name, one, trials in (("one", sweep, names[:2]), ("two", on_two_ranks, names[2:])):
        agent = forked.Process(target=work, args=(tmp_path, one, trials, name))
        agent.start()
        agents.append(agent)
    for agent in agents:
        agent.join()
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["2 0", "1 0"]
    assert sorted(runs_of(tmp_path)) == names
    out, best = tmp_path / "out", tmp_path / "best"
    arguments = ["report", str(tmp_path / "root"), "--out", str(out), "--export", str(best)]
    assert main(arguments) == 0, capsys.readouterr().err
    table = (out / "trials.csv").read_text().splitlines()
    assert sorted(line.partition(",")[0] for line in table[1:]) == names
    assert "optimizer.lr" in table[0]
    first = table[1].partition(",")[0]
    assert f"<h1>The best of 3 trials is {first}: " in (out / "report.html").read_text()
    trained = tmp_path / "root" / first / "checkpoints/last.ckpt"
    assert load(best).digest() == load(trained).digest()
