"""Profiles a training step of each strategy: how busy the GPU is, and where the step waits for it.

`fit` trains ViT-B/32 with random weights on `--batch` random images, as in `strategies`. The GPU is
busy for the sum of its kernels' times; the rest of a step it waits for the CPU. A step waits for
the GPU where torch reads a value from it; torch's own mode counts these.

    python -m scripts.bench.gpu.profile [--names full_finetuning mm_adapter ...] [--batch 256]
"""

import warnings
from collections import Counter
from typing import Any

import torch
from pytorch_lightning.callbacks import Callback
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from typing_extensions import override

from scripts.bench.gpu.strategies import NAMES, Training, ready
from scripts.bench.harness import DEVICE, figure, hide_warnings, options

STEPS, PROFILED = 8, 5  # of a training; the first step that is profiled
SYNCHRONISES = "called a synchronizing CUDA operation"


class Profile(Callback):
    """Notes where a step waits for the GPU, then profiles all steps from `PROFILED` on."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if DEVICE == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.profile = profile(activities=activities, acc_events=True)
        self.lines: Counter[str] = Counter()
        self.recorder: Any = None
        self.caught: Any = None

    @override
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == PROFILED - 2 and DEVICE == "cuda":
            self.recorder = warnings.catch_warnings(record=True)
            self.caught = self.recorder.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        if batch_idx == PROFILED:
            self.profile.start()

    @override
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.recorder is None:
            return
        torch.cuda.set_sync_debug_mode("default")
        for warning in self.caught:
            if SYNCHRONISES in str(warning.message):
                self.lines[f"{warning.filename}:{warning.lineno}"] += 1
        self.recorder.__exit__(None, None, None)
        self.recorder = None

    @override
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.profile.stop()


def measure(training: Training, batch: int) -> None:
    """Prints the figures of one strategy."""
    batches = ready(batch) * STEPS
    alone = sorted(training.fit(batches))[STEPS // 2]
    profiled = Profile()
    training.fit(batches, [profiled])
    rows = profiled.profile.key_averages()
    count = STEPS - PROFILED
    launched = busy = waited = None
    if DEVICE == "cuda":
        # Rows of kernels alone: the operation that launched one has its time, too.
        kernels = [row for row in rows if row.device_type == DeviceType.CUDA]
        kernels = [row for row in kernels if not row.is_user_annotation]
        seconds = sum(row.self_device_time_total for row in kernels) / count / 1e6
        busy = 100 * seconds / alone
        launched = sum(row.count for row in kernels) / count
        waited = sum(profiled.lines.values())
        for line, times in profiled.lines.most_common():
            print(f"    {times} at {line}")
        print(rows.table(sort_by="self_device_time_total", row_limit=12, max_name_column_width=60))
    title = f"{training.title}: the GPU is busy, of a step of {1000 * alone:.0f} ms"
    figure(f"{training.title}: kernels of a step", launched, "")
    figure(title, busy, "%")
    figure(f"{training.title}: waits of a step", waited, "")
    calls = sum(row.count for row in rows) / count
    figure(f"{training.title}: operations of a step", calls, "")


def main() -> None:
    """Prints the figures of each strategy."""
    chosen = options(__doc__, names=NAMES, batch=256)
    hide_warnings()
    for name in chosen.names:
        measure(Training(name), chosen.batch)


if __name__ == "__main__":
    main()
