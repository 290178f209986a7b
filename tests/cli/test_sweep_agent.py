"""W&B's own agents run trials; the test answers in place of W&B's server."""

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
