"""scripts/quickstart.sh: what it calls, and the whole of it on a small world."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vlmtune.cli.fit import NOISE
from vlmtune.cli.main import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/quickstart.sh"
STUB = """\
#!{python}
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit(sys.argv[1] == os.environ.get("FAILS"))
"""

pytestmark = [pytest.mark.filterwarnings(f"ignore:{pattern}") for pattern in NOISE]


def run(folder: Path, **environment: str) -> tuple[subprocess.CompletedProcess, list[list[str]]]:
    """Runs the script in a project of its own, with a stand-in for `vlmtune`; returns its calls."""
    programs, calls = folder / "bin", folder / "calls"
    programs.mkdir(exist_ok=True)
    calls.write_text("")
    stub = programs / "vlmtune"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    script = folder / "scripts" / SCRIPT.name
    script.parent.mkdir(exist_ok=True)
    shutil.copy(SCRIPT, script)
    variables = {k: v for k, v in os.environ.items() if k != "SEED"} | environment
    variables |= {"PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls)}
    done = subprocess.run(
        ["sh", str(script)], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
    )
    return done, [json.loads(line) for line in calls.read_text().splitlines()]


def test_the_steps_and_what_is_said(tmp_path):
    done, calls = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [call[0] for call in calls] == [
        *("build", "build", "evaluate", "fit", "fit", "export", "score"),
        *("evaluate", "evaluate", "report", "report"),
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == len(calls) + 1
    assert all(re.match(r"\[ +\d+ s\] \S", line) for line in lines)
    assert lines[-1].endswith("open runs/quickstart/report/report.html")
    cola = calls[2]  # without the blind rows of this one the report at the end has none
    assert cola[cola.index("--blind") + 1] == calls[1][calls[1].index("--out") + 1]
    assert calls[-1][1] == cola[cola.index("--out") + 1]
    assert len(SCRIPT.read_text().splitlines()) <= 50


def test_a_seed_has_folders_of_its_own_and_shares_the_data(tmp_path):
    calls = run(tmp_path)[1]
    other = run(tmp_path, SEED="3")[1]
    same = [
        [re.sub("^3$", "0", word).replace("seed-3", "seed-0") for word in call] for call in other
    ]
    assert same == calls
    seeded = "--seed_everything 3 --model.seed 3 --data.seed 3"
    assert [seeded in " ".join(call) for call in other] == [call[0] == "fit" for call in other]
    assert other[:3] == calls[:3]
    for call in other[3:5]:
        root = call[call.index("--trainer.default_root_dir") + 1]
        assert root.startswith("runs/quickstart/seed-3/")


def test_a_second_call_goes_on_from_the_last_checkpoints(tmp_path):
    last = Path("runs/quickstart/seed-0/mm-adapter/checkpoints/last.ckpt")
    (tmp_path / last).parent.mkdir(parents=True)
    (tmp_path / last).touch()
    probe, adapter = (call for call in run(tmp_path)[1] if call[0] == "fit")
    assert "--ckpt_path" not in probe
    assert adapter[adapter.index("--ckpt_path") + 1] == str(last)


def test_a_step_that_fails_ends_it(tmp_path):
    done, calls = run(tmp_path, FAILS="evaluate")
    assert done.returncode == 1
    assert [call[0] for call in calls] == ["build", "build", "evaluate"]


def smaller(call: list[str], few: Path) -> list[str]:
    """A call of the script, on a small world and for two steps."""
    if call[:2] == ["build", "scenes"]:
        sizes = {"train": 24, "val": 4, "test": 30, "multi": 4, "processes": 1, "benchmarks": 2}
        sizes["ar4t_test"] = 4
        return [*call, *(f"--{name}={size}" for name, size in sizes.items())]
    if call[0] == "fit":
        return [*call, "--config", str(few)]
    return call


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A working directory with the repository's configs, and the script's calls made small."""
    for name in ("configs", "checkpoints"):
        (tmp_path / name).symlink_to(ROOT / name)
    few = {
        "trainer": {
            "max_steps": 2,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "callbacks": [
                {
                    "class_path": "vlmtune.training.evaluation.Evaluation",
                    "init_args": {"every_n_steps": 2},
                },
                {
                    "class_path": "pytorch_lightning.callbacks.ModelCheckpoint",
                    "init_args": {"every_n_train_steps": 2},
                },
            ],
        },
        "data": {"batch_size": 8},
    }
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few))
    calls = [smaller(call, tmp_path / "few.yaml") for call in run(tmp_path)[1]]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vlmtune"])
    return calls


@pytest.mark.slow
def test_it_runs_from_end_to_end_and_again(quick, tmp_path, capsys):
    for call in quick:
        assert main(call) == 0, (call, capsys.readouterr().err)
    out = tmp_path / "runs/quickstart"
    assert {path.name for path in out.iterdir()} == {
        *("world", "shards", "features", "zero-shot", "seed-0", "export", "report", "suite")
    }
    for name in ("linear-probe", "mm-adapter"):
        kept = {path.name for path in (out / "seed-0" / name / "checkpoints").iterdir()}
        assert kept == {"best.ckpt", "last.ckpt"}
    said = capsys.readouterr()
    assert "Storing " in said.err
    table = (out / "report/report.md").read_text()
    for name in ("zero-shot", "linear probe", "MM-Adapter"):
        assert f"| {name} |" in table
    for name in ("blind (n-gram)", "blind (image averaged)"):
        assert name in table.splitlines()[2]

    # The picture that is scored is the first item's, with its two captions.
    (score,) = (call for call in quick if call[0] == "score")
    item = json.loads((out / "world/cola/multi_unseen.json").read_text())[0]
    assert Path(score[2]).name == item[0]
    assert [score[4], score[6]] == [item[1], item[3]]

    for call in quick:
        assert main(call) == 0, (call, capsys.readouterr().err)
    again = capsys.readouterr().err
    assert again.count("already holds this build; it is kept") == 2
    assert "Storing " not in again  # features are there
    kept = {path.name for path in (out / "seed-0/mm-adapter/checkpoints").iterdir()}
    assert kept == {"best.ckpt", "last.ckpt"}
