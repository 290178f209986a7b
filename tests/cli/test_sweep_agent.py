"""W&B's own agent runs a trial as one run; the test answers in the place of W&B's server."""

import multiprocessing
import os
import random
import sys
from pathlib import Path
from unittest import mock

import pytest
import wandb
import yaml
from wandb.apis.public import sweeps
from wandb.wandb_agent import Agent

from tests.cli.test_sweep import ROOT, draw, offline, pytestmark, runs_of, tiny  # noqa: F401
from vlmtune.cli.main import main
from vlmtune.model import load


@pytest.mark.slow
def test_an_agents_trial_on_two_ranks_is_one_run(tmp_path, monkeypatch, model_folder, shards):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sweep = yaml.safe_load((ROOT / "configs/sweeps/mm_adapter.yaml").read_text())
    sweep["command"] += tiny(tmp_path, model_folder, shards)
    sweep["command"] += ["--trainer.devices=2", "--trainer.strategy=ddp"]
    rng = random.Random(0)
    drawn = {name: {"value": draw(value, rng)} for name, value in sweep["parameters"].items()}
    trial = {"type": "run", "run_id": "trial7", "program": None, "args": drawn}
    beats: list[dict] = []

    def heartbeat(api, agent, metrics, running):
        beats.append(running)
        return [trial] if len(beats) == 1 else []

    monkeypatch.setattr(wandb, "Api", object)
    monkeypatch.setattr(sweeps, "_sweep_with_runs", lambda *_: {"config": yaml.safe_dump(sweep)})
    monkeypatch.setattr(sweeps, "_register_agent", lambda *_, **__: {"id": "agent"})
    monkeypatch.setattr(sweeps, "_agent_heartbeat", heartbeat)
    monkeypatch.setattr(Agent, "POLL_INTERVAL", 0.2)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    agent = Agent(object(), multiprocessing.Queue(), sweep_id="sweep", count=1)
    with mock.patch.dict(os.environ):  # it sets variables of the trial, also in this process
        agent.run()
    assert (agent._finished, agent._failed) == (1, 0)
    assert runs_of(tmp_path) == ["trial7"]
    assert (tmp_path / "wandb/vlmtune/trial7/checkpoints/last.ckpt").is_file()
    assert (tmp_path / "root/trial7/report.json").is_file()


def work(folder: Path, sweep: dict, trials: list[str], name: str) -> None:
    """Runs an agent of W&B in this process, which gets these trials one after the other."""
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
def test_four_trials_of_two_agents_end_in_one_table_and_one_export(
    tmp_path, monkeypatch, model_folder, shards, capsys
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    sweep = yaml.safe_load((ROOT / "configs/sweeps/mm_adapter.yaml").read_text())
    sweep["command"] += tiny(tmp_path, model_folder, shards)
    names = [f"trial{i}" for i in range(4)]
    forked = multiprocessing.get_context("fork")
    agents = []
    for name, trials in (("one", names[:2]), ("two", names[2:])):
        agent = forked.Process(target=work, args=(tmp_path, sweep, trials, name))
        agent.start()
        agents.append(agent)
    for agent in agents:
        agent.join()
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["2 0", "2 0"]
    out, best = tmp_path / "out", tmp_path / "best"
    # The logger's folder lies beside that of the sweep, as in the configs.
    (tmp_path / "wandb/vlmtune").rename(tmp_path / "checkpoints of trials")
    arguments = ["report", str(tmp_path / "root"), "--out", str(out), "--export", str(best)]
    assert main(arguments) == 0, capsys.readouterr().err
    table = (out / "trials.csv").read_text().splitlines()
    assert sorted(line.partition(",")[0] for line in table[1:]) == names
    assert "optimizer.lr" in table[0]
    first = table[1].partition(",")[0]
    assert f"<h1>The best of 4 trials is {first}: " in (out / "report.html").read_text()
    trained = tmp_path / "checkpoints of trials" / first / "checkpoints/last.ckpt"
    assert load(best).digest() == load(trained).digest()
