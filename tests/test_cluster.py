"""scripts/cluster: each shell of a recipe runs, and starts a command that we have."""

import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.runs import QUIET
from tests.test_readme import check_vlmtune
from tests.tiny import fit_config

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "scripts/cluster"
PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
# What a cluster sets, and torchrun's options for the second of two nodes.
SET = {
    "torchrun.sh": {"NODES": "2", "RANK": "1", "MASTER": "node0"},
    "jobset.yaml": {"JOB_COMPLETION_INDEX": "1"},
    "skypilot.yaml": {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_NODE_IPS": "node0\nnode1",
    },
}
MASTERS = {"jobset.yaml": "vlmtune-nodes-0-0.vlmtune"}
SHELLS = ["slurm.sh", *SET]
STARTER = '#!/bin/sh\nprintf "%s\\0" "$0" "$@"\n'

pytestmark = QUIET


def shell(name: str) -> str:
    """The part of a recipe that a shell runs."""
    text = (CLUSTER / name).read_text(encoding="utf-8")
    if name == "jobset.yaml":
        (job,) = yaml.safe_load(text)["spec"]["replicatedJobs"]
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["bash", "-c"]
        (text,) = container["args"]
    elif name == "skypilot.yaml":
        text = yaml.safe_load(text)["run"]
    return text.replace("/workspace/", "")


def started(name: str) -> list[str]:
    """The words of srun or torchrun as a recipe starts it, in the present folder."""
    programs = Path("programs").absolute()
    programs.mkdir(exist_ok=True)
    for program in ("srun", "torchrun"):
        path = programs / program
        path.write_text(STARTER)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    variables = {**SET.get(name, {}), "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["bash", "-c", shell(name), "bash", "--config", "run.yaml"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\0")[:-1]


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """The folder of a run whose config lies in the present folder."""
    monkeypatch.chdir(tmp_path)
    fit_config(tmp_path, tmp_path, tmp_path).rename("run.yaml")
    (tmp_path / "runs/mine/checkpoints").mkdir(parents=True)
    return Path("runs/mine")


@pytest.mark.parametrize("name", SHELLS)
def test_a_recipe_starts_a_training_and_then_resumes_it(name, run):
    words = started(name)[1:]
    if name == "slurm.sh":
        words = words[words.index("vlmtune") :]
    else:
        options = get_args_parser().parse_args(words)
        assert (options.nnodes, options.node_rank, options.nproc_per_node) == ("2", 1, "8")
        assert options.master_addr == MASTERS.get(name, "node0")
        assert options.module
        words = [options.training_script, *options.training_script_args]
    assert words[0] == "vlmtune"
    for wanted in ("devices 8", "num_nodes 2", f"default_root_dir {run}"):
        assert f"--trainer.{wanted}" in " ".join(words)
    assert "--ckpt_path" not in words
    check_vlmtune(words[1:])
    # The newest checkpoint, whichever it is.
    on_signal = run / ("hpc_ckpt_2.ckpt" if name == "slurm.sh" else "last-on-signal.ckpt")
    last = run / "checkpoints/last.ckpt"
    for time, path in enumerate((on_signal, last, on_signal), start=1):
        path.touch()
        os.utime(path, (time, time))
        assert started(name)[-2:] == ["--ckpt_path", str(path)]
    check_vlmtune([*words[1:], "--ckpt_path", str(last)])


def test_torchrun_starts_one_node_by_default(run, monkeypatch):
    monkeypatch.delitem(SET, "torchrun.sh")
    options = get_args_parser().parse_args(started("torchrun.sh")[1:])
    assert (options.nnodes, options.node_rank, options.master_addr) == ("1", 0, "localhost")


def test_a_worker_of_ray_trains_and_resumes(run, monkeypatch):
    """Ray itself is not installed where tests run."""
    context = SimpleNamespace(get_local_world_size=lambda: 8, get_world_size=lambda: 16)
    for name in ("ray", "ray.train", "ray.train.torch"):
        monkeypatch.setitem(sys.modules, name, Mock(get_context=lambda: context))
    ray_train = ModuleType("ray_train")
    exec((CLUSTER / "ray_train.py").read_text(), ray_train.__dict__)
    ray_train.main = Mock(return_value=0)
    ray_train.train(["--config", "run.yaml"])
    (words,) = ray_train.main.call_args.args
    assert {"--trainer.devices=8", "--trainer.num_nodes=2"} <= {*words}
    assert "--ckpt_path" not in words
    check_vlmtune(words)
    (run / "checkpoints/last.ckpt").touch()
    ray_train.train(["--config", "run.yaml"])
    (words,) = ray_train.main.call_args.args
    assert words[-2:] == ["--ckpt_path", str(run.absolute() / "checkpoints/last.ckpt")]
    ray_train.main.return_value = 1
    with pytest.raises(RuntimeError, match="expected a training that ends well"):
        ray_train.train([])


@pytest.mark.parametrize("name", ["Dockerfile", "skypilot.yaml"])
def test_what_a_recipe_installs_are_extras_of_ours(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"\[([\w,]+)\]['\"]\n", (CLUSTER / name).read_text())
    assert {*extras.split(",")} <= project["optional-dependencies"].keys()


def test_the_page_lists_each_recipe():
    names = [path.name for path in CLUSTER.iterdir() if path.is_file()]
    assert sorted(names) == sorted(re.findall(r"scripts/cluster/([\w.]+)\)", PAGE))
