"""Work to measure goes in, its seconds or bytes come out; never reads data or trained weights."""

import argparse
import json
import logging
import multiprocessing
import os
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import open_clip
import torch
from torch import Tensor
from torch.optim import AdamW
from typing_extensions import override

from vlmtune.adapters.base import Adapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.pairs.base import PairPolicy
from vlmtune.types import Batch, Features, FeatureSpec, Pooled, Targets, Tokens

ResultT = TypeVar("ResultT")

WORDS = ("two", "small", "red", "cubes", "on", "the", "left", "of", "a", "blue", "glass", "sphere")
IMAGE, TOKEN = 4370, 38  # millions of multiplications in the towers of ViT-B/32
CONTEXT = 77  # tokens of a caption in published code, which pads each to this length
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Memory is measured without a new process: a GPU resets its peak, and tiny sizes measure none.
IN_PROCESS = DEVICE == "cuda" or "TINY" in os.environ
# With `TINY` in the environment this takes the place of ViT-B/32, to see that a script works.
TINY = {
    "embed_dim": 64,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 224, "layers": 2, "width": 64, "head_width": 32, "patch_size": 32},
    "text_cfg": {
        "context_length": CONTEXT,
        "vocab_size": 49408,
        "width": 64,
        "heads": 2,
        "layers": 2,
    },
}


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


def figure(
    name: str, value: float | None, unit: str, bound: float | None = None, required: str = ""
) -> None:
    """Prints a measured figure, with the bound and the requirement that it is compared with.

    A value that only a GPU has is None elsewhere.
    Where the environment has `FIGURES`, the figure is also added to that file, as a line of JSON.
    """
    limits = []
    if bound is not None:
        limits.append(f"bound {bound:.4g} {unit}")
    if required:
        limits.append(f"required {required}")
    beside = f" ({', '.join(limits)})" if limits else ""
    measured = "-" if value is None else f"{value:.4g} {unit}"
    print(f"{name}: {measured}{beside}", flush=True)
    path = os.environ.get("FIGURES")
    if path is None:
        return
    line = {"name": name, "value": value, "unit": unit, "bound": bound, "required": required}
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def matrix_rate(kind: torch.dtype) -> float:
    """Returns the operations a second of a product of two matrices of this type.

    The matrices have 8,192 rows on a GPU, which fill it, and 256 on a CPU.
    """
    size = 8192 if DEVICE == "cuda" else 256
    one, other = (torch.randn(size, size, device=DEVICE).to(kind) for _ in range(2))
    seconds = medians([partial(torch.mm, one, other)], 10, wall=True)[0]
    return 2 * size**3 / seconds


def copy_rate() -> float:
    """Returns the bytes a second that a copy within the device's memory reads and writes."""
    size = 2**31 if DEVICE == "cuda" else 2**24
    source = torch.ones(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    seconds = medians([partial(target.copy_, source)], 10, wall=True)[0]
    return 2 * size / seconds


def usual_clock() -> Callable[[], float]:
    """Processor seconds, which exclude other processes, on one CPU thread; else real ones."""
    alone = DEVICE == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def timed(work: Callable[[], ResultT], wall: bool = False) -> tuple[ResultT, float]:
    """Returns the result of `work` and its seconds, real ones if `wall`."""
    clock = time.perf_counter if wall else usual_clock()
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
    """AdamW that notes the time at the end of each step."""

    def __init__(self, parameters: Any, fused: bool | None = None) -> None:
        super().__init__(parameters, lr=1e-5, fused=fused)
        self.clock = usual_clock()
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
    backbone: OpenClip,
    data: Any,
    steps: int,
    fused: bool | None = None,
    adapter: Adapter | None = None,
    precision: Any = "32-true",
    pairs: PairPolicy | None = None,
    chunk: int | None = None,
    callbacks: Sequence[Any] = (),
) -> list[float]:
    """The seconds of each step of `fit`, by default of full fine-tuning, with its callback.

    `data` is what Lightning takes: a DataModule or a loader. `fused` is AdamW's.
    """
    # Loaded here, as Lightning would count in the memory that other scripts measure.
    from tests.runs import quiet_trainer
    from vlmtune.adapters.full_finetuning import FullFineTuning
    from vlmtune.objectives.info_nce import InfoNCE
    from vlmtune.objectives.pair_bce import PairBCE
    from vlmtune.training.module import AdaptationModule
    from vlmtune.training.run_monitor import RunMonitor

    optimizers: list[TimedAdamW] = []

    def optimizer(parameters: Any) -> TimedAdamW:
        optimizers.append(TimedAdamW(parameters, fused))
        return optimizers[-1]

    adapter = adapter or FullFineTuning()
    objective = PairBCE() if adapter.joint else InfoNCE()
    chosen: dict[str, Any] = {"pairs": pairs, "optimizer": optimizer, "chunk": chunk}
    module = AdaptationModule(backbone, adapter, [objective], **chosen)
    where: dict[str, Any] = {"accelerator": "auto", "devices": 1, "precision": precision}
    trainer = quiet_trainer(max_steps=steps, callbacks=[RunMonitor(), *callbacks], **where)
    trainer.fit(module, data)
    return optimizers[0].seconds()


def hide_warnings() -> None:
    """Hides the warnings that `vlmtune fit` hides, and what Lightning says of each trainer."""
    from vlmtune.cli.fit import NOISE

    for pattern in (*NOISE, ".*have no `val_dataloader`.*"):
        warnings.filterwarnings("ignore", pattern)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)


@cache
def model_name() -> str:
    """Returns open_clip's name of the model that scripts measure: ViT-B/32."""
    if "TINY" not in os.environ:
        return "ViT-B-32-quickgelu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tiny.json")
        path.write_text(json.dumps(TINY), encoding="utf-8")
        open_clip.add_model_config(path)
    return "tiny"


def random_clip() -> OpenClip:
    """Makes ViT-B/32 with random weights."""
    torch.manual_seed(0)
    return OpenClip(model_name(), "random").to(DEVICE)


def captions(count: int) -> list[str]:
    """Makes captions of the same twelve words, each in an order of its own."""
    texts = []
    for _ in range(count):
        order = torch.randperm(len(WORDS)).tolist()
        texts.append(" ".join(WORDS[i] for i in order))
    return texts


def random_batches(
    count: int,
    size: int,
    side: int,
    device: str = "cpu",
    group: int = 1,
    tokenize: Callable[[Sequence[str]], Tensor] | None = None,
) -> list[Batch]:
    """Batches of random images, each with a caption of its own; `group` of them make a group.

    `tokenize` makes the tokens of the captions beforehand, as data workers do.
    """
    true = torch.eye(size, dtype=torch.bool)
    image_group = torch.arange(size) // group
    same_group = image_group[:, None] == image_group
    out = []
    for number in range(count):
        names = tuple(f"{number}-{i}" for i in range(size))
        texts = tuple(text.replace("glass", "metal") for text in captions(size))
        batch = Batch(
            keys=names[::group],
            image_ids=names,
            texts=texts,
            targets=Targets(true, same_group, same_group),
            image_group=image_group,
            pixels=torch.randn(size, 3, side, side, device=device),
            text_ids=names,
            true_ids=tuple(frozenset({name}) for name in names),
            exhaustive=(False,) * size,
            token_ids=None if tokenize is None else tokenize(texts),
        )
        out.append(batch)
    return out


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
    """Runs `work` in a process of its own, which has its own peak of memory; a GPU needs none."""
    if IN_PROCESS:
        return work(*arguments)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)
