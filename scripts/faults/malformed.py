"""Throws malformed files at the readers of vlmtune, and counts what is not an error of one line.

    python -m scripts.faults.malformed --inputs 1000 --seed 0

In: a number of inputs and a seed. Out: for each kind of file how many were refused in one line, how
many were read, and each fault: another exception, an error of several lines, or no answer within
`PATIENCE` seconds. Never: a new process; all readers are called in this one.
"""

import argparse
import json
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.open_clip import OpenClip
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.data.schema import Manifest, ShardInfo, read_manifest
from vlmtune.errors import UserError
from vlmtune.export import check_checkpoint, save_export
from vlmtune.export.loading import load_export
from vlmtune.features.store import FeatureStore, open_or_build_store
from vlmtune.features.store_key import StoreKey
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Result
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.search.files import VERSION, read_list, write_list
from vlmtune.storage.folder import DamagedError
from vlmtune.types import FeatureSpec, Pooled

MODEL = "checkpoints/scenes-clip"
PATIENCE = 20  # seconds
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "x", "../../etc/passwd"),
    *("\x1b]0;owned\x07", "a\nb", [], {}, [[]], {"a": {}}, ["x"] * 50, {"class_path": "os.system"}),
)


class NoAnswerError(Exception):
    """A reader took longer than `PATIENCE`."""


def write_valid(folder: Path) -> dict[Path, Callable[[], object]]:
    """Writes one valid file of each kind; returns the reader of each."""
    backbone, adapter = OpenClip(MODEL), LinearProbe()
    adapter.attach(backbone)
    export, checkpoint = folder / "export", folder / "last.ckpt"
    save_export(export, backbone, adapter, provenance={})
    specs = {"backbone": backbone.spec(), "fingerprint": backbone.fingerprint}
    specs |= {"version": 1, "adapter": adapter.spec()}
    state = trained_state(backbone, adapter)
    torch.save({"state_dict": state, "vlmtune": specs, "global_step": 3}, checkpoint)

    metrics = {"accuracy": MetricValue(0.625, 40, 0.25, 0.47, 0.758)}
    origin = Provenance("clip", "none", {}, "f00d", "", {}, {}, "cafe", "2030-01-01", 0, 0, 1.0)
    RunReport("run", origin, (Result("bench", "2", "accuracy", metrics),)).save(
        folder / "report.json"
    )
    shards = folder / "shards"
    shards.mkdir()
    (shards / "0.tar").write_bytes(b"tar " * 512)
    shard = ShardInfo("0.tar", 4, 4, 2048, "f00d")
    (shards / "manifest.json").write_text(Manifest("b", {}, {}, (shard,)).to_json())
    key = StoreKey("f00d", "text", FeatureSpec("pooled", -1), "cafe")
    rows = [(["a", "b"], Pooled(torch.ones(2, 4)))]
    store = open_or_build_store(folder, key, lambda: rows, 2).folder
    index = folder / "index"
    index.mkdir()
    source: Any = {"name": MODEL, "pretrained": None, "architecture": None, "identity": "f00d"}
    listed: Any = {"version": VERSION, "model": source, "parts": ["part-00000"], "shortlist": None}
    listed["images"] = {"/a": "b"}
    write_list(index, listed)
    (folder / "cola.json").write_text(json.dumps([["a.png", "a cube", "b.png", "a dog"]] * 3))

    def read_export() -> object:
        return load_export(export, backbone=OpenClip(MODEL))

    return {
        export / "adapter_config.json": read_export,
        export / "adapter.safetensors": read_export,
        checkpoint: lambda: check_checkpoint(checkpoint),
        folder / "report.json": lambda: RunReport.load(folder / "report.json"),
        shards / "manifest.json": lambda: read_manifest(shards),
        store / "meta.json": lambda: FeatureStore(store, key),
        store / "ids.json": lambda: FeatureStore(store, key),
        store / "values.bin": lambda: FeatureStore(store, key),
        index / "index.json": lambda: read_list(index),
        folder / "cola.json": lambda: ColaMulti(str(folder / "cola.json"), str(folder)).read(),
    }


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Returns a changed copy of a file: of its JSON if it has some, else of its bytes."""
    try:
        value: Any = json.loads(content)
    except (ValueError, UnicodeDecodeError):
        return _of_bytes(content, draw)
    kind = draw.random()
    if kind < 0.6:
        return json.dumps(_of_value(value, draw)).encode("utf-8", "surrogatepass")
    if kind < 0.65:
        return b"[" * 100_000
    if kind < 0.7:
        return content.decode().encode("utf-16")
    return _of_bytes(content, draw)


def _of_value(value: Any, draw: random.Random) -> Any:
    """Replaces, removes or adds one value, at any depth."""
    inner = isinstance(value, dict | list) and len(value) > 0 and draw.random() < 0.8
    if not inner:
        return draw.choice(WRONG)
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    chosen, kind = draw.choice(keys), draw.random()
    changed: Any = value.copy()
    if kind < 0.15:
        del changed[chosen]
    elif kind < 0.25 and isinstance(value, dict):
        changed["x" * draw.randint(1, 9)] = draw.choice(WRONG)
    else:
        changed[chosen] = _of_value(value[chosen], draw)
    return changed


def _of_bytes(content: bytes, draw: random.Random) -> bytes:
    kind, where = draw.randrange(5), draw.randrange(max(1, len(content)))
    if kind == 0:
        return content[:where]
    if kind == 1:
        return content + draw.randbytes(9)
    if kind == 2:
        return b"" if draw.random() < 0.3 else draw.randbytes(100)
    damaged = bytearray(content)
    for _ in range(kind - 2):
        if damaged:
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def outcome(read: Callable[[], object]) -> str:
    """Returns "read", "refused", or the fault."""

    def give_up(*_: object) -> None:
        raise NoAnswerError

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        read()
    except UserError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {str(error)[:80]!r}"
    except DamagedError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return "read"


def run(inputs: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Returns the outcomes by kind of file, and a line for each fault."""
    draw, faults = random.Random(seed), []
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        readers = write_valid(Path(name))
        for path, read in readers.items():
            assert outcome(read) == "read", (path, outcome(read))
        files = list(readers)
        for number in range(inputs):
            path = files[number % len(files)]
            whole = path.read_bytes()
            path.write_bytes(mutated(whole, draw))
            result = outcome(readers[path])
            path.write_bytes(whole)
            kind = result if result in ("read", "refused") else "fault"
            counts.setdefault(path.name, Counter())[kind] += 1
            if kind == "fault":
                faults.append(f"input {number}, {path.name}: {result}")
    return counts, faults


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Throws malformed files at every reader.")
    parser.add_argument("--inputs", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the changes (%(default)s)")
    options = parser.parse_args()
    counts, faults = run(options.inputs, options.seed)
    for name, by_kind in counts.items():
        print(f"{name}: {by_kind['refused']} refused, {by_kind['read']} read, "
              f"{by_kind['fault']} faults")  # fmt: skip
    print("\n".join(faults))
    print(f"{len(faults)} faults in {options.inputs} inputs")


if __name__ == "__main__":
    main()
