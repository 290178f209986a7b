"""Measures whole training steps by strategy: their time, their memory and the largest batch.

`fit` trains ViT-B/32 with random weights on random images with a caption of 12 words each, in
bf16-mixed on a GPU; the batch doubles until the memory is full, a step takes 3 s, or `--largest` is
reached. A joint adapter scores each image with its caption and three others. The bound is the time
that the step's operations take at the measured rate of a matrix product; attention in a fused
kernel is counted, element-wise work is not.

    python -m scripts.bench.gpu.strategies [--names full_finetuning mm_adapter ...] [--largest 8192]
"""

import copy
import gc
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from scripts.bench.harness import (
    DEVICE,
    figure,
    fit_seconds,
    hide_warnings,
    matrix_rate,
    options,
    peak_memory,
    random_batches,
    random_clip,
)
from tests.runs import Batches, plugin_of
from vlmtune.adapters.base import Adapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.pairs.mixed_pairs import MixedPairs
from vlmtune.types import Batch

NAMES = ["full_finetuning", "last_blocks", "lora", "word_prompts", "mm_adapter", "grounded_words"]
FIRST, STEPS, SLOW = 256, 4, 3.0  # batch to begin with, steps of a run, seconds of a step to end at
PRECISION = "bf16-mixed" if DEVICE == "cuda" else "32-true"
KIND = torch.bfloat16 if DEVICE == "cuda" else torch.float32


@cache
def clip() -> OpenClip:
    """The model that each training copies."""
    return random_clip()


def ready(batch: int) -> list[Batch]:
    """One batch of random images and captions, as data workers would give it."""
    return random_batches(1, batch, 224, DEVICE, tokenize=clip().tokenize)


@dataclass(frozen=True)
class Training:
    """Short trainings of one strategy."""

    name: str
    chunk: int | None = None

    @property
    def title(self) -> str:
        """The name that its figures have."""
        name = self.name.replace("_", " ")
        return f"{name}, chunk {self.chunk}" if self.chunk else name

    def fit(self, batches: list[Batch], callbacks: Sequence[Any] = ()) -> list[float]:
        """Returns the seconds of each step."""
        adapter = plugin_of("adapters", self.name, Adapter)
        options: dict[str, Any] = {"precision": PRECISION, "chunk": self.chunk}
        options["callbacks"] = callbacks
        if adapter.joint:
            options["pairs"] = MixedPairs(positives=1, hard_negatives=0, random_negatives=3)
        backbone = copy.deepcopy(clip())
        steps = Batches(batches)
        return fit_seconds(backbone, steps, len(batches), True, adapter, **options)

    def seconds(self, batch: int) -> tuple[float, int]:
        """Returns the seconds of a step and the peak of memory in bytes."""
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        batches = ready(batch) * STEPS
        peak_memory(reset=True)
        seconds = self.fit(batches)
        return statistics.median(seconds), peak_memory()

    def operations(self, batch: int) -> int:
        """Returns the operations of a step."""
        with FlopCounterMode(display=False) as counter:
            self.fit(ready(batch))
        return counter.get_total_flops()


def measure(training: Training, rate: float, limit: int) -> None:
    """Doubles the batch as far as it goes, then prints the figures of the last one."""
    batch, last = min(FIRST, limit), None
    operations = training.operations(batch) / batch
    while batch <= limit:
        try:
            last = batch, *training.seconds(batch)
        except torch.OutOfMemoryError:
            break
        print(f"{training.title}: {batch} pairs, {1000 * last[1]:.1f} ms", flush=True)
        if last[1] > SLOW:
            break
        batch *= 2
    if last is None:
        print(f"{training.title}: {batch} pairs do not fit the memory")
        return
    size, seconds, memory = last
    figure(f"{training.title}: largest batch, by doubling", size, "pairs")
    figure(f"{training.title}: a step at that size", size / seconds, "pairs/s", rate / operations)
    figure(f"{training.title}: memory of a pair", memory / size / 2**20, "MiB")


def main() -> None:
    """Prints three figures for each strategy."""
    chosen = options(__doc__, names=NAMES, largest=8192, chunk=256)
    hide_warnings()
    rate = matrix_rate(KIND)
    for name in chosen.names:
        measure(Training(name), rate, chosen.largest)
    if chosen.chunk:
        measure(Training("full_finetuning", chosen.chunk), rate, chosen.largest)


if __name__ == "__main__":
    main()
