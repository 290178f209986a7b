"""Work to measure goes in, its seconds or bytes come out; never reads data or trained weights."""

import argparse
import multiprocessing
import re
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.optim import AdamW
from typing_extensions import override

from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import Features, FeatureSpec, Pooled, Tokens

ResultT = TypeVar("ResultT")

WORDS = ("two", "small", "red", "cubes", "on", "the", "left", "of", "a", "blue", "glass", "sphere")
CONTEXT = 77  # tokens of a caption in published code, which pads each to this length
IMAGE, TOKEN = 4370, 38  # millions of multiplications in the towers of ViT-B/32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Parses one option for each default, of its type, and prints where the script runs."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    for name, default in defaults.items():
        kind: dict[str, Any] = {"type": type(default)}
        if isinstance(default, bool):
            kind = {"action": "store_true"}
        elif isinstance(default, list):
            kind = {"type": type(default[0]), "nargs": "+"}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **kind)
    parsed = parser.parse_args()
    print(f"{DEVICE}, {torch.get_num_threads()} threads", flush=True)
    return parsed


def timed(work: Callable[[], ResultT], wall: bool = False) -> tuple[ResultT, float]:
    """Returns the result of `work` and its seconds.

    One thread on the CPU: processor seconds, which exclude other processes, unless `wall`.
    """
    alone = DEVICE == "cpu" and torch.get_num_threads() == 1 and not wall
    clock = time.process_time if alone else time.perf_counter
    began = clock()
    result = work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return result, clock() - began


def medians(works: Sequence[Callable[[], Any]], rounds: int, wall: bool = False) -> list[float]:
    """Returns the median seconds of each work, taken in turns, after one round to warm up."""
    turns = [partial(_seconds, work, wall) for work in works]
    for turn in turns:
        turn()
    return in_turns(turns, rounds)


def _seconds(work: Callable[[], Any], wall: bool) -> list[float]:
    return [timed(work, wall)[1]]


def in_turns(works: Sequence[Callable[[], list[float]]], rounds: int) -> list[float]:
    """Returns the median of all seconds that each work returns; the works take turns."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for seconds, work in zip(taken, works, strict=True):
            seconds += work()
    return [statistics.median(seconds) for seconds in taken]


class TimedAdamW(AdamW):
    """AdamW that notes the time at the end of each step: processor seconds on a CPU."""

    def __init__(self, parameters: Any, fused: bool | None = None) -> None:
        super().__init__(parameters, lr=1e-5, fused=fused)
        self.clock = time.process_time if DEVICE == "cpu" else time.perf_counter
        self.ends: list[float] = []

    @override
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = super().step(closure)  # type: ignore[arg-type]
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        self.ends.append(self.clock())
        return loss

    def seconds(self) -> list[float]:
        """The time of each step after the first."""
        return [end - start for start, end in pairwise(self.ends)]


def fit_seconds(
    backbone: OpenClip, data: Any, steps: int, fused: bool | None = None
) -> list[float]:
    """The seconds of each step of `fit`: full fine-tuning, with the callback of every run.

    `data` is what Lightning takes: a DataModule or a loader. `fused` is AdamW's.
    """
    # Loaded here, as Lightning would count in the memory that other scripts measure.
    from tests.runs import quiet_trainer
    from vlmtune.adapters.full_finetuning import FullFineTuning
    from vlmtune.objectives.info_nce import InfoNCE
    from vlmtune.training.module import AdaptationModule
    from vlmtune.training.run_monitor import RunMonitor

    optimizers: list[TimedAdamW] = []

    def optimizer(parameters: Any) -> TimedAdamW:
        optimizers.append(TimedAdamW(parameters, fused))
        return optimizers[-1]

    module = AdaptationModule(backbone, FullFineTuning(), [InfoNCE()], optimizer=optimizer)
    where: dict[str, Any] = {"accelerator": "auto", "devices": 1}
    trainer = quiet_trainer(max_steps=steps, callbacks=[RunMonitor()], **where)
    trainer.fit(module, data)
    return optimizers[0].seconds()


def hide_warnings() -> None:
    """Hides the warnings that `vlmtune fit` hides."""
    from vlmtune.cli.fit import NOISE

    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)


def random_clip() -> OpenClip:
    """Makes ViT-B/32 with random weights."""
    torch.manual_seed(0)
    return OpenClip("ViT-B-32-quickgelu", "random").to(DEVICE)


def captions(count: int) -> list[str]:
    """Makes captions of the same twelve words, each in an order of its own."""
    texts = []
    for _ in range(count):
        order = torch.randperm(len(WORDS)).tolist()
        texts.append(" ".join(WORDS[i] for i in order))
    return texts


@torch.no_grad()
def encode_padded(backbone: OpenClip, texts: list[str], spec: FeatureSpec) -> Features:
    """Encodes texts as published code does: the tower sees `CONTEXT` tokens of each."""
    tower = backbone.text_tower
    assert tower is not None
    words = tower.words(texts)
    full = words.padded(CONTEXT)
    layer = -1 if spec.kind == "pooled" else spec.layer
    state = tower.run(tower.start(full), 0, tower.layers + 1 + layer)
    if spec.kind == "pooled":
        return Pooled(tower.finish(state))
    return Tokens(state.values[:, : words.mask.shape[1]], words.mask)


def peak_memory(reset: bool = False) -> int:
    """Returns the most bytes held so far; `reset` starts a new count at the bytes held now."""
    if DEVICE == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return process_bytes("VmHWM")


def process_bytes(name: str) -> int:
    """Returns what Linux says of this process's memory, such as "RssAnon"."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(rf"{name}:\s+(\d+)", status)[0])


def in_new_process(work: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Runs `work` in a process of its own, which has its own peak of memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)
