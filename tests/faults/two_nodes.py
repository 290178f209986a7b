"""Kills one of two nodes, resumes the job on the other alone, and compares the loss of each step.

    python -m tests.faults.two_nodes

In: nothing but the shipped CLIP. Out: how far the losses differ from those of a job of two nodes
that was not interrupted. Never: another machine: each node is an agent of torchrun on this one, and
the shards come from an HTTP server on loopback.

The job on one node has twice the batch of a node, so that each step has the same groups.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from torch.distributed.elastic.utils.distributed import get_free_port

from tests.faults.work import CORPUS, MODEL, arguments, environment, prepare, processes
from tests.faulty_server import FaultyServer
from tests.tiny import fit_config, plugin
from vlmtune.cli.main import main as vlmtune

BATCH = 2  # groups of a node in a step
EVERY = 4  # steps between checkpoints
PATIENCE = 300.0
"""Seconds for a job, and for the node that is left to end."""


def start(run: Path, nodes: int, *options: str) -> list["subprocess.Popen[bytes]"]:
    """Starts a training on one node or more."""
    command = ["-m", "vlmtune", "fit", "--config", str(run / "fit.yaml"), *options]
    command += ["--trainer.num_nodes", str(nodes), "--data.batch_size", str(2 * BATCH // nodes)]
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    agent += ["--master-addr", "127.0.0.1", "--master-port", str(get_free_port())]
    agent += ["--nnodes", str(nodes)]
    log = (run / "log").open("a")
    started = []
    for rank in range(nodes):
        words = [*agent, "--node-rank", str(rank), *command]
        node = subprocess.Popen(
            words, env=environment(), start_new_session=True, stdout=log, stderr=log
        )
        started.append(node)
    return started


def end(nodes: list["subprocess.Popen[bytes]"]) -> list[int]:
    """Waits for all nodes; returns their exit statuses."""
    return [node.wait(PATIENCE) for node in nodes]


def write_config(run: Path, url: str, steps: int) -> None:
    """Writes the config of a run into its folder."""
    saved = {"every_n_train_steps": EVERY, "save_last": True, "dirpath": str(run / "checkpoints")}
    logged = {"save_dir": str(run), "name": "csv", "flush_logs_every_n_steps": 1}
    lightning = "pytorch_lightning"
    trainer = {
        "max_steps": steps,
        "strategy": "ddp",
        "log_every_n_steps": 1,
        "callbacks": [{"class_path": f"{lightning}.callbacks.ModelCheckpoint", "init_args": saved}],
        "logger": [{"class_path": f"{lightning}.loggers.CSVLogger", "init_args": logged}],
        "default_root_dir": str(run),
    }
    train = [plugin("data.shards.ShardSet", path=url, cache=str(run.parent / "cache"))]
    model = {"adapter": plugin("adapters.lora.LoRA")}
    fit_config(run, MODEL, Path(), model=model, data={"train": train}, trainer=trainer)


def losses(run: Path) -> dict[int, float]:
    """The loss of each step; of a step that was repeated the last."""
    by_step: dict[int, float] = {}
    for file in sorted(run.glob("csv/version_*/metrics.csv")):
        with file.open(newline="") as rows:
            for row in csv.DictReader(rows):
                if row.get("train/loss"):
                    by_step[int(row["step"])] = float(row["train/loss"])
    return by_step


def survive(folder: Path, steps: int) -> tuple[dict[int, float], dict[int, float], int]:
    """Runs both jobs; returns their losses, and the step that the one node resumed from."""
    prepare(folder)
    out, whole, killed = folder / "corpus", folder / "whole", folder / "killed"
    out.mkdir()
    assert vlmtune(arguments(CORPUS, folder, out)) == 0
    server = FaultyServer(out / "shards")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for run in (whole, killed):
        write_config(run, server.url, steps)
    assert end(start(whole, 2)) == [0, 0], _log(whole)
    nodes, last = start(killed, 2), killed / "checkpoints/last.ckpt"
    deadline = time.monotonic() + PATIENCE
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    # The rank first, as an agent would end it in its own way.
    for process in reversed(processes(nodes[1].pid)):
        os.kill(process, signal.SIGKILL)
    assert all(end(nodes)), "a node ended without an error though the other was killed"
    resumed = max(losses(killed), default=-1) + 1
    assert resumed < steps, f"the job had ended before it was killed: {_log(killed)}"
    assert end(start(killed, 1, "--ckpt_path", str(last))) == [0], _log(killed)
    return losses(whole), losses(killed), resumed


def _log(run: Path) -> str:
    return (run / "log").read_text()[-2000:]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Kills one of two nodes and resumes on the other.")
    parser.add_argument("--steps", type=int, default=40, help="of each job (%(default)s)")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        whole, killed, resumed = survive(Path(folder), steps)
    if whole.keys() != killed.keys():
        raise SystemExit(f"steps {sorted(whole)} and {sorted(killed)} differ")
    far = max(abs(killed[step] / loss - 1) for step, loss in whole.items())
    print(f"{len(whole)} losses of two nodes; node 1 was killed after step {resumed - 1}")
    print(f"one node did the rest: the losses differ by {far:.1e} at most")


if __name__ == "__main__":
    main()
