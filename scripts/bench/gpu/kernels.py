"""Measures a step of full fine-tuning with compiled towers, and without fused attention.

ViT-B/32 with random weights, `--batch` random images with a caption of 12 words each, `fit` in
bf16-mixed on a GPU.

    python -m scripts.bench.gpu.kernels [--batch 256]
"""

import copy
import statistics
import time
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from scripts.bench.gpu.strategies import clip, ready
from scripts.bench.harness import (
    DEVICE,
    figure,
    fit_seconds,
    hide_warnings,
    options,
)
from tests.runs import Batches
from vlmtune.training.compile_towers import CompileTowers

PRECISION = "bf16-mixed" if DEVICE == "cuda" else "32-true"
STEPS = 8


def step_seconds(batches: Any, callbacks: Any = ()) -> float:
    """Seconds of a step; the first two, which compile and choose kernels, are left out."""
    seconds = fit_seconds(
        copy.deepcopy(clip()), batches, STEPS, fused=True, precision=PRECISION, callbacks=callbacks
    )
    return statistics.median(seconds[2:])


def main() -> None:
    """Prints the figures."""
    chosen = options(__doc__, batch=256)
    hide_warnings()
    batches = Batches(ready(chosen.batch) * STEPS)
    usual = step_seconds(batches)
    figure(f"a step of {chosen.batch} pairs", 1000 * usual, "ms")
    began = time.perf_counter()
    compiled = step_seconds(batches, [CompileTowers()])
    figure("compiled towers: times as fast", usual / compiled, "x")
    figure("compiled towers: seconds with compiling", time.perf_counter() - began, "s")
    with sdpa_kernel(SDPBackend.MATH):
        plain = step_seconds(batches)
    figure("plain attention: times as fast as fused kernels", usual / plain, "x")


if __name__ == "__main__":
    main()
