"""Measures what `fit` adds to a bare PyTorch loop over the same model, loss and batches.

The small CLIP that ships with vlmtune, full fine-tuning under InfoNCE with AdamW, batches in
memory. The bare loop embeds, scores, calls the loss, the backward pass and the optimizer; `fit`
adds Lightning, its hooks, logs, checks of scores and gradients, and the default monitor. A step is
the time from one call of the optimizer to the next; the two take turns. Required: under 10 % more.
`--profile` lists the functions in which a step of `fit` spends its time.

    python -m scripts.bench.step_overhead [--batch 64] [--steps 20] [--rounds 5]
"""

import cProfile
import pstats
import statistics
import warnings
from typing import Any

import torch
from pytorch_lightning import Trainer
from torch.utils.data import DataLoader

from scripts.bench.fine_tuning import TimedAdamW
from scripts.bench.harness import DEVICE, captions, options
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.fit import NOISE
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training.module import AdaptationModule
from vlmtune.training.run_monitor import RunMonitor
from vlmtune.types import Batch, Targets

MODEL = "checkpoints/scenes-clip"
REQUIRED = 0.10


def parts(optimizers: list[TimedAdamW]) -> AdaptationModule:
    """The module; its optimizer comes into `optimizers`."""

    def optimizer(parameters: Any) -> TimedAdamW:
        optimizers.append(TimedAdamW(parameters))
        return optimizers[-1]

    backbone = OpenClip(MODEL).to(DEVICE)
    return AdaptationModule(backbone, FullFineTuning(), [InfoNCE()], optimizer=optimizer)


def bare(batches: list[Batch]) -> list[float]:
    """The seconds of each step of the bare loop."""
    module = parts([])
    backbone, adapter, objective = module.backbone, module.adapter, InfoNCE()
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
    optimizers: list[TimedAdamW] = []
    module = parts(optimizers)
    off: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing"), False)
    off |= dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False)
    rows: Any = batches
    loader = DataLoader(rows, batch_size=None)
    trainer = Trainer(
        max_epochs=1, accelerator="auto", devices=1, callbacks=[RunMonitor()], **off
    )  # fmt: skip
    trainer.fit(module, loader)
    return optimizers[0].seconds()


def random_batches(count: int, size: int, side: int) -> list[Batch]:
    """Batches of random images, each with a caption of its own."""
    true = torch.eye(size, dtype=torch.bool)
    out = []
    for number in range(count):
        names = tuple(f"{number}-{i}" for i in range(size))
        texts = tuple(text.replace("glass", "metal") for text in captions(size))
        out.append(
            Batch(
                keys=names,
                image_ids=names,
                texts=texts,
                targets=Targets(true, true, true),
                image_group=torch.arange(size),
                pixels=torch.randn(size, 3, side, side),
                text_ids=names,
                true_ids=tuple(frozenset({name}) for name in names),
                exhaustive=(False,) * size,
            )
        )
    return out


def main() -> None:
    """Prints one line."""
    torch.set_num_threads(1)
    chosen = options(__doc__, batch=64, steps=20, rounds=5, profile=False)
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)
    side = OpenClip(MODEL).preprocessing["size"]
    side = side if isinstance(side, int) else side[0]
    batches = random_batches(chosen.steps + 1, chosen.batch, side)
    if chosen.profile:
        with cProfile.Profile() as profile:
            fitted(batches)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    taken: dict[str, list[float]] = {"bare": [], "fit": []}
    for _ in range(chosen.rounds):
        taken["bare"] += bare(batches)
        taken["fit"] += fitted(batches)
    alone, ours = (statistics.median(seconds) for seconds in taken.values())
    print(
        f"a step of {chosen.batch} pairs: bare loop {1000 * alone:.1f} ms, fit {1000 * ours:.1f} "
        f"ms: {ours / alone - 1:+.1%} (required under {REQUIRED:.0%})"
    )


if __name__ == "__main__":
    main()
