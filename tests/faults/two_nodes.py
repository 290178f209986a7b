"""Kills one of two nodes, resumes the job on the other alone, and compares the loss of each step.

    python -m tests.faults.two_nodes

In: nothing but the shipped CLIP. Out: how far the losses differ from those of a job of two nodes
that was not interrupted. Never: another machine: each node is an agent of torchrun on this one, and
the shards come from an HTTP server on loopback.

The job on one node has twice the batch of a node, so that each step has the same groups.
"""

import argparse
import csv
import functools
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.work import CORPUS, MODEL, arguments, environment, prepare
from vlmtune.cli.main import main as vlmtune

BATCH = 2  # groups of a node in a step
EVERY = 4  # steps between checkpoints
PATIENCE = 300.0
"""Seconds for a job, and for the node that is left to end."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing of each request."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves a folder on loopback; gives its URL."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


class Job:
    """A training on one node or more.

    Args:
        config: The config.
        nodes: How many.
        resume: A checkpoint; None to begin.
    """

    def __init__(self, config: Path, nodes: int, resume: Path | None = None) -> None:
        self.log = config.with_suffix(".log").open("a")
        command = ["-m", "vlmtune", "fit", "--config", str(config)]
        command += ["--data.batch_size", str(2 * BATCH // nodes)]
        command += ["--ckpt_path", str(resume)] if resume else []
        if nodes > 1:
            command += ["--trainer.num_nodes", str(nodes), "--trainer.strategy", "ddp"]
        port = _free_port()
        self.nodes = [self._start(command, nodes, rank, port) for rank in range(nodes)]

    def _start(
        self, command: list[str], nodes: int, rank: int, port: int
    ) -> "subprocess.Popen[bytes]":
        agent = ["-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", str(rank)]
        agent += ["--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
        agent += ["--master-port", str(port)]
        words = [sys.executable, *(agent if nodes > 1 else []), *command]
        return subprocess.Popen(
            words, env=environment(), start_new_session=True, stdout=self.log, stderr=self.log
        )

    def kill(self, node: int) -> None:
        """Kills a node: its agent and its rank."""
        for process in [*_children(self.nodes[node].pid), self.nodes[node].pid]:
            os.kill(process, signal.SIGKILL)

    def end(self) -> list[int]:
        """Waits for all nodes; returns their exit statuses."""
        return [node.wait(PATIENCE) for node in self.nodes]


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def write_config(path: Path, url: str, cache: Path, steps: int) -> Path:
    """Writes the config of a run into the folder of its own name beside it; returns that."""

    def plugin(name: str, **given: Any) -> dict[str, Any]:
        return {"class_path": name, "init_args": given}

    run = path.with_suffix("")
    kept = {"every_n_train_steps": EVERY, "save_last": True, "dirpath": str(run / "checkpoints")}
    logger = {
        "class_path": "pytorch_lightning.loggers.CSVLogger",
        "init_args": {"save_dir": str(run), "name": "csv", "flush_logs_every_n_steps": 1},
    }
    config = {
        "model": {
            "backbone": plugin("vlmtune.backbones.open_clip.open_clip.OpenClip", model=str(MODEL)),
            "adapter": plugin("vlmtune.adapters.lora.LoRA"),
            "objectives": [plugin("vlmtune.objectives.info_nce.InfoNCE")],
        },
        "data": {
            "train": [plugin("vlmtune.data.shards.ShardSet", path=url, cache=str(cache))],
        },
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": steps,
            "log_every_n_steps": 1,
            "callbacks": [plugin("pytorch_lightning.callbacks.ModelCheckpoint", **kept)],
            "logger": [logger],
            "enable_progress_bar": False,
            "default_root_dir": str(run),
        },
    }
    path.write_text(json.dumps(config))
    return run


def losses(run: Path) -> dict[int, float]:
    """The loss of each step; of a step that was repeated the last."""
    by_step: dict[int, float] = {}
    for file in sorted(run.glob("csv/*/metrics.csv"), key=lambda path: path.stat().st_mtime):
        with file.open(newline="") as rows:
            for row in csv.DictReader(rows):
                if row.get("train/loss"):
                    by_step[int(row["step"])] = float(row["train/loss"])
    return by_step


def survive(folder: Path, steps: int) -> tuple[dict[int, float], dict[int, float], int]:
    """Runs both jobs; returns their losses, and the step that the one node resumed from."""
    prepare(folder)
    out = folder / "corpus"
    out.mkdir()
    assert vlmtune(arguments(CORPUS, folder, out)) == 0
    with serving(out / "shards") as url:
        whole = write_config(folder / "whole.json", url, folder / "cache", steps)
        assert Job(whole.with_suffix(".json"), 2).end() == [0, 0], _log(whole)
        killed = write_config(folder / "killed.json", url, folder / "cache", steps)
        job, last = Job(killed.with_suffix(".json"), 2), killed / "checkpoints/last.ckpt"
        deadline = time.monotonic() + PATIENCE
        while not last.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        job.kill(1)
        assert all(job.end()), "a node ended without an error though the other was killed"
        resumed = max(losses(killed), default=-1) + 1
        assert resumed < steps, f"the job had ended before it was killed: {_log(killed)}"
        assert Job(killed.with_suffix(".json"), 1, last).end() == [0], _log(killed)
    return losses(whole), losses(killed), resumed


def _log(run: Path) -> str:
    return run.with_suffix(".log").read_text()[-2000:]


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
    print(f"{len(whole)} losses of two nodes; node 1 was killed after step {resumed - 1}, one node "
          f"did the rest: they differ by {far:.1e} at most")  # fmt: skip


if __name__ == "__main__":
    main()
