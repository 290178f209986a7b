"""Measures what `fit` adds to a bare PyTorch loop over the same model, loss and batches.

The small CLIP that ships with vlmtune, full fine-tuning under InfoNCE with AdamW, batches in
memory. The bare loop embeds, scores, calls the loss, the backward pass and the optimizer; `fit`
adds Lightning, its hooks, logs, checks of scores and gradients, and the default monitor. A step is
the time from one call of the optimizer to the next; the two take turns. Required: under 10 % more.

    python -m scripts.bench.step_overhead [--batch 64] [--steps 20] [--rounds 5]
"""

from functools import partial

import torch

from scripts.bench.harness import (
    DEVICE,
    TimedAdamW,
    figure,
    fit_seconds,
    hide_warnings,
    in_turns,
    options,
    random_batches,
)
from tests.runs import Batches
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training.module import AdaptationModule
from vlmtune.types import Batch

MODEL = "checkpoints/scenes-clip"
SIDE = 64  # pixels of its images
REQUIRED = 0.10


def bare(batches: list[Batch]) -> list[float]:
    """The seconds of each step of the bare loop."""
    backbone, adapter, objective = OpenClip(MODEL).to(DEVICE), FullFineTuning(), InfoNCE()
    module = AdaptationModule(backbone, adapter, [objective])
    optimizer = TimedAdamW([p for p in module.parameters() if p.requires_grad])
    module.train()
    for batch in batches:
        batch = batch.to(DEVICE)
        assert batch.pixels is not None
        optimizer.zero_grad()
        image = backbone.encode_image(batch.pixels, adapter.image_input)
        text = backbone.encode_text(batch.texts, adapter.text_input)
        objective(adapter(image, text), batch.targets).backward()
        optimizer.step()
    return optimizer.seconds()


def fitted(batches: list[Batch]) -> list[float]:
    """The seconds of each step of `fit`."""
    return fit_seconds(OpenClip(MODEL).to(DEVICE), Batches(batches), len(batches))


def main() -> None:
    """Prints one line."""
    torch.set_num_threads(1)
    chosen = options(__doc__, batch=64, steps=20, rounds=5)
    hide_warnings()
    batches = random_batches(chosen.steps + 1, chosen.batch, SIDE)
    fit = partial(fitted, batches)
    alone, ours = in_turns([partial(bare, batches), fit], chosen.rounds)
    print(f"a step of {chosen.batch} pairs: bare loop {1000 * alone:.1f} ms")
    added = 100 * (ours / alone - 1)
    title = f"fit adds to a bare step of {chosen.batch} pairs"
    figure(title, added, "%", required=f"under {100 * REQUIRED:.0f} %")


if __name__ == "__main__":
    main()
