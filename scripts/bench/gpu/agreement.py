"""Compares the losses of short trainings on the GPU with those on the CPU.

First, a training runs under DDP with one rank. Then each adapter and each objective takes three
steps over the small CLIP that ships with vlmtune, on the same random batches from the same weights,
without dropout: on the CPU, and on the GPU in float32 and in bf16-mixed. Required: differences
within 0.1 % of the largest loss of the training in float32; in bf16-mixed within 2 % of it, or 0.02
if it is less than 1. Without a GPU the CPU is compared with itself.

    python -m scripts.bench.gpu.agreement [--adapters mm_adapter ...] [--objectives info_nce ...]
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scripts.bench.harness import DEVICE, figure, hide_warnings, options, random_batches
from tests.runs import Batches, Watch, plugin_of, quiet_trainer
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.config import ROOT, stems
from vlmtune.objectives.base import Objective
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.training.module import AdaptationModule

Case = Callable[[], tuple[Any, ...]]

MODEL = ROOT / "checkpoints/scenes-clip"
STEPS, SIDE = 3, 64
BOUNDS = {"32-true": 0.001, "bf16-mixed": 0.02}
SMALLEST = {"32-true": 0.0, "bf16-mixed": 1.0}  # a smaller loss counts as this
# Nothing to train, or they need what these batches lack: a fusion encoder, a teacher, phrases, or
# a second caption of an image, without which READ's loss is 0.
LEFT_OUT = {"zero_shot", "fusion_tuning", "matching", "rank_kl", "c2lip", "read_alignment"}
LEFT_OUT |= {"unit_contrast"}  # phrases, too


def trained(kind: str) -> list[str]:
    """Names of the plug-ins of a kind that train over the small CLIP."""
    return [name for name in stems(kind) if name not in LEFT_OUT]


def losses(make: Case, precision: Any, where: dict[str, Any], batch: int) -> Tensor:
    """The loss of each step of one training."""
    torch.manual_seed(0)
    adapter, *objectives = make()
    batches = random_batches(STEPS, batch, SIDE, group=2)
    module = AdaptationModule(OpenClip(str(MODEL)), adapter, objectives)
    # A GPU draws other numbers than a CPU.
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    watch = Watch()
    options = {"devices": 1, "max_steps": STEPS, "callbacks": [watch], "precision": precision}
    quiet_trainer(**options, **where).fit(module, Batches(batches))
    return torch.tensor(watch.losses, dtype=torch.float64)


def with_adapter(stem: str) -> tuple[Any, ...]:
    """An adapter and the objective that it is compared with."""
    adapter = plugin_of("adapters", stem, Adapter)
    if adapter.joint:
        return adapter, PairBCE()
    return adapter, InfoNCE()


def with_objective(stem: str) -> tuple[Any, ...]:
    """Full fine-tuning and an objective."""
    objective = plugin_of("objectives", stem, Objective)
    adapter = FullFineTuning(tokens="tokens" in objective.needs)
    if stem == "distillation":
        # It begins at 0, where AdamW makes full steps of gradients that are rounding errors.
        return adapter, objective, InfoNCE()
    return adapter, objective


def cases(adapters: list[str], objectives: list[str]) -> Iterator[tuple[str, Case]]:
    """Yields a name, and a function that makes an adapter and an objective."""
    for stem in adapters:
        yield stem, partial(with_adapter, stem)
    for stem in objectives:
        yield f"full fine-tuning, {stem}", partial(with_objective, stem)


def main() -> None:
    """Prints one line for each training, and the largest differences."""
    everything = {"adapters": trained("adapters"), "objectives": trained("objectives")}
    chosen = options(__doc__, **everything, batch=16)
    hide_warnings()
    here = {"accelerator": "gpu" if DEVICE == "cuda" else "cpu"}
    lora = partial(with_adapter, "lora")
    alone = losses(lora, "32-true", here, chosen.batch)
    ranks = losses(lora, "32-true", {**here, "strategy": "ddp"}, chosen.batch)
    backend = "NCCL" if DEVICE == "cuda" else "gloo"
    difference = float((alone - ranks).abs().max())
    figure(f"DDP with one rank of {backend}, largest difference of a loss", difference, "")
    worst = dict.fromkeys(BOUNDS, 0.0)
    failed = []
    for name, make in cases(chosen.adapters, chosen.objectives):
        expected = losses(make, "32-true", {"accelerator": "cpu"}, chosen.batch)
        for precision in BOUNDS:
            got = losses(make, precision, here, chosen.batch)
            size = max(SMALLEST[precision], float(expected.abs().max()))
            difference = float((got - expected).abs().max()) / size
            print(f"{name}, {precision}: {difference:.1e}", flush=True)
            worst[precision] = max(worst[precision], difference)
            if not difference <= BOUNDS[precision]:  # NaN, too
                failed.append(f"{name} ({precision})")
    for precision, difference in worst.items():
        required = f"under {100 * BOUNDS[precision]:g} %"
        name = f"largest difference of a loss from the CPU's, {precision}"
        figure(name, 100 * difference, "%", required=required)
    if failed:
        raise SystemExit(f"expected equal losses, got differences in: {', '.join(failed)}")


if __name__ == "__main__":
    main()
