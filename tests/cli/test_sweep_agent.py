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
