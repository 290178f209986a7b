"""Runs every benchmark on a GPU within some minutes; prints one table and writes it as JSON.

Each part is a script, in a process of its own with a limit of time, so a part that fails or
hangs costs no other part. `--wheels` names the packages that a machine with
PyTorch for CUDA may lack; they are carried there beforehand. Without a GPU the same parts run on
one thread at tiny sizes, which shows that they work and measures nothing; "-" stands for what only
a GPU has.

    python -m scripts.bench.gpu [--minutes 8] [--parts card agreement ...] [--out gpu.json]
    python -m scripts.bench.gpu --wheels
"""

import argparse
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

# Otherwise the question whether there is a GPU occupies it, and no fork may use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
from packaging.utils import canonicalize_name

FORK = multiprocessing.get_context("fork")
WHEELS = (
    "annotated-types",
    "braceexpand",
    "docstring-parser",
    "faiss-cpu",
    "ftfy",
    "importlib-resources",
    "jsonargparse",
    "open-clip-torch",
    "pydantic",
    "pydantic-core",
    "typeshed-client",
    "typing-inspection",
    "wcwidth",
    "webdataset",
)


class Part(NamedTuple):
    """One script: its module, its arguments on a GPU and at tiny size, its fraction of the time."""

    name: str
    module: str
    gpu: str
    tiny: str
    fraction: float


BENCH = "scripts.bench"
PARTS = (
    Part("card", f"{BENCH}.gpu.card", "", "", 0.06),
    Part(
        "agreement",
        f"{BENCH}.gpu.agreement",
        "",
        "--adapters mm_adapter --objectives eqsim --batch 4",
        0.35,
    ),
    Part(
        "fine-tuning, pixels in memory",
        f"{BENCH}.fine_tuning",
        "--batch 256 --steps 10 --rounds 2 --half --in-memory",
        "--batch 2 --steps 2 --rounds 1 --half --in-memory",
        0.08,
    ),
    Part(
        "fine-tuning, images decoded",
        f"{BENCH}.fine_tuning",
        "--batch 256 --steps 6 --rounds 2 --half --workers 14",
        "--batch 2 --steps 2 --rounds 1 --half",
        0.1,
    ),
    Part("strategies", f"{BENCH}.gpu.strategies", "", "--largest 2 --chunk 1", 0.2),
    Part("profile", f"{BENCH}.gpu.profile", "", "--batch 2", 0.2),
    Part("kernels", f"{BENCH}.gpu.kernels", "", "--batch 2", 0.15),
    Part(
        "joint scoring",
        f"{BENCH}.joint_scoring",
        "--images 256 --texts 256 --pairs 512",
        "--images 2 --texts 2 --rounds 1",
        0.1,
    ),
    Part(
        "frozen store",
        f"{BENCH}.frozen_store",
        "--images 1024 --batch 64",
        "--images 2 --batch 2 --rounds 1",
        0.1,
    ),
    Part(
        "objectives",
        f"{BENCH}.objectives",
        "--batches 1024 4096 16384 --pairs 256",
        "--batches 16 32 64 --pairs 2 --rounds 1 --fusion-batches 16",
        0.12,
    ),
    Part("loader", f"{BENCH}.loader", "--images 2048 --batch 256 --workers 14 --rounds 1",
         "--images 8 --batch 4 --rounds 1 --workers 1", 0.08),
    Part("step overhead", f"{BENCH}.step_overhead", "--batch 256", "--batch 4 --steps 2 --rounds 1",
         0.06),
    Part("suite", f"{BENCH}.suite", "--scale 0.01 --joint-scale 0.002",
         "--scale 0.00005 --joint-scale 0.00003", 0.15),
    Part("search", f"{BENCH}.search", "--images 4000",
         "--images 20 --queries 2 --k 1 2 4 8 16", 0.12),
    Part("quickstart", "vlmtune.cli.main", "quickstart --size small --out {folder}",
         "quickstart --size tiny --out {folder}", 0.6),
)  # fmt: skip


def work(part: Part, words: list[str], log: Path) -> None:
    """Runs a part in this process, with its output in a file."""
    with log.open("w", encoding="utf-8") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.setsid()  # processes that it starts end with it
    sys.argv = [part.module, *words]
    sys.exit(importlib.import_module(part.module).main())


def run(part: Part, seconds: float, tiny: bool, folder: Path) -> dict[str, Any]:
    """Runs a part in a new process; returns its figures, lines, seconds and how it ended."""
    figures, log = folder / "figures.jsonl", folder / "log.txt"
    os.environ["FIGURES"] = str(figures)
    arguments = part.tiny if tiny else part.gpu
    words = arguments.format(folder=folder / "out").split()
    began = time.monotonic()
    process = FORK.Process(target=work, args=(part, words, log))
    process.start()
    process.join(seconds)
    ended = "ok" if process.exitcode == 0 else f"failed ({process.exitcode})"
    if process.is_alive() and process.pid is not None:
        ended = f"stopped after {seconds:.0f} s"
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    measured = []
    if figures.exists():
        measured = [json.loads(line) for line in figures.read_text(encoding="utf-8").splitlines()]
    return {
        "part": part.name,
        "command": " ".join([part.module, *words]).replace(str(folder), "FOLDER"),
        "ended": ended,
        "seconds": round(time.monotonic() - began, 1),
        "figures": measured,
        "lines": log.read_text(encoding="utf-8", errors="replace").splitlines(),
    }


def show(result: dict[str, Any]) -> None:
    """Prints the table of a part, and the last lines of one that failed."""
    print(f"\n{result['part']}: {result['ended']}, {result['seconds']:.0f} s", flush=True)
    for row in result["figures"]:
        bound = "" if row["bound"] is None else f"bound {row['bound']:.4g}"
        required = row["required"] and f"required {row['required']}"
        value = "-" if row["value"] is None else f"{row['value']:.4g}"
        print(f"  {row['name'][:78]:78} {value:>10} {row['unit']:8} {bound} {required}")
    if result["ended"] != "ok":
        print("\n".join(f"  | {line[:200]}" for line in result["lines"][-12:]), flush=True)


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m scripts.bench.gpu", description=summary)
    names = [part.name for part in PARTS]
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument(
        "--parts", nargs="+", choices=names, default=names, metavar="PART", help="in this order"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--wheels", action="store_true", help="name the packages to carry, and end")
    return parser.parse_args()


def main() -> None:
    """Runs the chosen parts, in their order."""
    chosen = arguments()
    if chosen.wheels:
        # A package's metadata may spell its name with underscores.
        versions: dict[str, str] = {}
        for package in importlib.metadata.distributions():
            versions[canonicalize_name(package.name)] = package.version
        for name in WHEELS:
            print(f"{name}=={versions[name]}" if name in versions else name)
        return
    began = time.monotonic()
    tiny = not torch.cuda.is_available()
    device = "CPU, at tiny sizes"
    if tiny:
        os.environ["TINY"] = os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    else:
        with FORK.Pool(1) as pool:
            device = pool.apply(torch.cuda.get_device_name)
    print(f"{device}, torch {torch.__version__}", flush=True)
    # Imported once, for the processes of all parts.
    for part in PARTS:
        importlib.import_module(part.module)
    importlib.import_module("vlmtune.training.module")
    results: list[dict[str, Any]] = []
    parts = {part.name: part for part in PARTS}
    for part in map(parts.__getitem__, chosen.parts):
        left = 60 * chosen.minutes - (time.monotonic() - began)
        seconds = min(left, max(60.0, part.fraction * 60 * chosen.minutes))
        if seconds < 5:
            print(f"\n{part.name}: left out, no time", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(part, seconds, tiny, Path(folder)))
        show(results[-1])
        content = {"device": device, "torch": torch.__version__, "parts": results}
        chosen.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    failed = [result["part"] for result in results if result["ended"] != "ok"]
    print(f"\n{time.monotonic() - began:.0f} s, written to {chosen.out}")
    if failed:
        raise SystemExit(f"expected all parts to end, these did not: {', '.join(failed)}")


if __name__ == "__main__":
    main()
