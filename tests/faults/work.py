"""The work that `kills` interrupts: its commands, tiny inputs, and what it must leave.

In: a kind of work and a folder. Out: the words of its command, and digests of what it left there.
Never: a process.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from tests.tiny import fit_config, keeping, plugin

MODEL = Path("checkpoints/scenes-clip").resolve()
COLOURS = ("red", "green", "blue", "yellow")
STEPS = 40
# What differs between two runs: times, and the sha256 of a meta.json that holds times.
TIMES = re.compile(rb'\n  "sha256": "\w+"|"mtime_ns": \d+|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:[\d.]+)?')


@dataclass(frozen=True)
class Work:
    """One kind of work, done by so many ranks; kills come before a file of the pattern `end`."""

    name: str
    ranks: int = 1
    end: str = ""


ALONE = Work("training, one process")
RANKS = Work("training, two ranks", ranks=2)
STORE = Work("feature store", end="store/text*/meta.json")
CORPUS = Work("corpus")
EXPORT = Work("export")
KINDS = (ALONE, RANKS, STORE, CORPUS, EXPORT)


def environment() -> dict[str, str]:
    """The environment of a run on one thread; without what says that it is a rank of another."""
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in ranks}
    return {**kept, "OMP_NUM_THREADS": "1"}


def processes(pid: int) -> list[int]:
    """A process and its children, none where it has ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        children = ""
    return [pid, *map(int, children.split())]


def prepare(folder: Path) -> None:
    """Writes pictures and a table of their captions."""
    rows = ["image,caption"]
    for number in range(24):
        colours = COLOURS[number % 4], COLOURS[number // 6]
        image = Image.new("RGB", (16, 16), (10 * number, 99, 255 - 10 * number))
        image.save(folder / f"{number}.png")
        rows.append(f"{number}.png,a {colours[0]} cube left of a {colours[1]} sphere")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")


def arguments(work: Work, sources: Path, out: Path) -> list[str]:
    """The command that does some work into `out`; a checkpoint there is resumed from."""
    if work == CORPUS:
        table = ["build", "table", str(sources / "table.csv"), "--records-per-shard", "4"]
        return [*table, "--out", str(out / "shards")]
    if work == EXPORT:
        # As in a job that is repeated: a kill may come when the export is already complete.
        return ["export", str(sources / "last.ckpt"), "--out", str(out / "export"), "--overwrite"]
    last = out / "run" / "checkpoints" / "last.ckpt"
    config = write_config(work, sources, out)
    return ["fit", "--config", str(config), *(["--ckpt_path", str(last)] if last.exists() else [])]


def write_config(work: Work, sources: Path, out: Path) -> Path:
    """Writes the config of a training that draws random numbers in every step."""
    place = str(out / "run/checkpoints")
    checkpoints = keeping(every_n_train_steps=4, save_last=True, dirpath=place)
    model = {
        "adapter": plugin("adapters.mm_adapter.MMAdapter", heads=2, hidden=8, dropout=0.1),
        "objectives": [plugin("objectives.pair_bce.PairBCE")],
        "pairs": plugin("pairs.mixed_pairs.MixedPairs", positives=1),
        "store": str(out / "store"),
    }
    trainer = {
        "devices": work.ranks,
        "strategy": "ddp" if work.ranks > 1 else "auto",
        "max_steps": 1 if work.end else STEPS,
        "callbacks": [checkpoints],
        "default_root_dir": str(out / "run"),
    }
    folder = Path(f"{out}-config")  # what lies in `out` is counted and compared
    data = {"batch_size": 2}
    shards = sources / "shards"
    return fit_config(folder, MODEL, shards, model=model, data=data, trainer=trainer)


def left(work: Work, out: Path) -> dict[str, str]:
    """The digest of each weight of a training, or of each file, and of files that should go."""
    digests = {}
    if work in (ALONE, RANKS):
        last = torch.load(out / "run/checkpoints/last.ckpt", weights_only=True)
        assert last["global_step"] == STEPS
        for name, value in last["state_dict"].items():
            digests[name] = hashlib.sha256(value.numpy().tobytes()).hexdigest()
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        if work.end and "run" in name.parts:
            continue
        if path.name.startswith(".") or path.suffix == ".part":
            digests[str(name)] = "left over"
        elif path.is_file() and work not in (ALONE, RANKS):
            content = TIMES.sub(b"", path.read_bytes()).replace(str(out).encode(), b"")
            digests[str(name)] = hashlib.sha256(content).hexdigest()
    return digests
