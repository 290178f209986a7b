"""Measures what EqSim adds to a training step of a dual and of a fusion encoder, and memory.

Time: forward and backward of InfoNCE + EqSim over InfoNCE alone, against a whole step of ViT-B/32
(scaled from a small batch). Required: under 1 % of the step at 256, 1,024 and 4,096 pairs; the
paper reports 2.6 % of a forward pass (Wang et al. 2023, appendix A.4). Memory: the peak of the loss
on one of `--ranks` ranks from its score shard, against all scores on every rank, in new processes
(Linux); a shard holds 2 / ranks of the scores. Fusion encoders: the table of fusion_eqsim.py.

    python -m scripts.bench.objectives [--batches 256 1024 4096] [--pairs 8] [--ranks 8]
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from scripts.bench import fusion_eqsim
from scripts.bench.harness import (
    DEVICE,
    figure,
    in_new_process,
    medians,
    options,
    peak_memory,
    random_clip,
)
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import ShardedObjective
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import Embedded, FeatureSpec, Scores, ScoreShard, Targets

WIDTH = 512
SCALE = 100.0
REQUIRED = 0.01
POOLED = FeatureSpec("pooled", frozen=False)


class EqualRanks(ProcessGroup):
    """A process group of equal ranks, seen from one of them."""

    def __init__(self, ranks: int) -> None:
        super().__init__(alone=True)
        self.ranks = ranks

    def sum(self, value: Any) -> Any:
        """Returns the sum over equal ranks."""
        return value * self.ranks

    def gather(self, value: Any, sizes: Any = None) -> Any:
        """Returns the rows of all ranks."""
        return torch.cat([value, *[value.detach()] * (self.ranks - 1)])


def embeddings(rows: int, seed: int) -> Tensor:
    """Random normalised embeddings, the leaf of the backward pass."""
    generator = torch.Generator().manual_seed(seed)
    values = normalize(torch.randn(rows, WIDTH, generator=generator), dim=-1)
    return values.to(DEVICE).requires_grad_()


def scored(image: Tensor, text: Tensor) -> Scores:
    """Scores of embeddings, as a dual adapter has them."""
    values = SCALE * image @ text.T
    embedded = Embedded(image, text, torch.tensor(SCALE, device=DEVICE))
    return Scores.full(values, embedded)


def diagonal(rows: int, columns: int) -> Targets:
    """Text i is true of image i and of no other."""
    true = torch.eye(max(rows, columns), dtype=torch.bool)[:rows, :columns].contiguous()
    # As in a training, the CPU knows the targets, too.
    return Targets(true, torch.ones_like(true), true).to(DEVICE)


def loss_step(image: Tensor, text: Tensor, objectives: list[ShardedObjective]) -> None:
    """Computes scores, losses and the gradients of embeddings."""
    scores, targets = scored(image, text), diagonal(len(image), len(text))
    torch.stack([o.weight * o(scores, targets) for o in objectives]).sum().backward()


def step_seconds(pairs: int, rounds: int) -> float:
    """Seconds of one training step of ViT-B/32 for each pair of image and caption."""
    backbone = random_clip().requires_grad_(True)
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-6)
    pixels = torch.randn(pairs, 3, 224, 224, device=DEVICE)
    # open_clip's own step sees captions padded to 77 tokens.
    texts = ["a photo of the thing " * 15] * pairs

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            image = backbone.encode_image(pixels, POOLED).values
            text = backbone.encode_text(texts, POOLED).values
        optimizer.zero_grad()
        loss_step(normalize(image, dim=-1), normalize(text, dim=-1), [InfoNCE()])
        optimizer.step()

    return medians([step], rounds)[0] / pairs


def loss_memory(batch: int, ranks: int, sharded: bool) -> int:
    """Bytes that the loss takes on one rank."""
    torch.set_num_threads(1)
    objectives, rows = [InfoNCE(), EqSim()], batch // ranks
    image, text = embeddings(batch, 0), embeddings(batch, 1)
    loss_step(image[:8], text[:8], objectives)  # libraries allocate their own memory first
    before = peak_memory(reset=True)
    if sharded:
        group: ProcessGroup = EqualRanks(ranks)
        of_rows = scored(image[:rows], text), diagonal(rows, batch)
        of_columns = scored(image, text[:rows]), diagonal(batch, rows)
    else:
        group = ProcessGroup(alone=True)
        of_rows = of_columns = scored(image, text), diagonal(batch, batch)
    shard = ScoreShard(*of_rows, *of_columns)
    losses = [o.shard_loss(shard, group) for o in objectives]
    torch.stack(losses).sum().backward()
    return max(1, peak_memory() - before)  # a tiny loss fits the memory that the process has


def main() -> None:
    """Prints one line for each batch, one for memory, and the table of fusion encoders."""
    chosen = options(
        __doc__,
        batches=[256, 1024, 4096],
        pairs=8,
        ranks=8,
        rounds=3,
        fusion_batches=list(fusion_eqsim.BATCHES),
    )
    each = step_seconds(chosen.pairs, chosen.rounds)
    print(f"ViT-B/32 step: {each:.4f} s a pair")
    for batch in chosen.batches:
        image, text = embeddings(batch, 0), embeddings(batch, 1)
        work = partial(loss_step, image, text)
        losses = [partial(work, [InfoNCE()]), partial(work, [InfoNCE(), EqSim()])]
        plain, both = medians(losses, chosen.rounds)
        print(f"batch {batch:5d}: InfoNCE {plain:.4f} s, EqSim adds {both - plain:.4f} s")
        percent = 100 * (both - plain) / (each * batch)
        required = f"under {100 * REQUIRED:.0f} %"
        figure(f"EqSim adds to a step of {batch} pairs", percent, "%", required=required)
    batch, ranks = chosen.batches[-1], chosen.ranks
    full, shard = (in_new_process(loss_memory, batch, ranks, x) for x in (False, True))
    print(
        f"batch {batch}, {ranks} ranks: {full / 1e6:.0f} MB with all scores on each, "
        f"{shard / 1e6:.0f} MB with its shard"
    )
    title = f"memory of the loss of {batch} pairs on one of {ranks} ranks, times less"
    figure(title, full / max(shard, 1), "x", ranks / 2)  # a tiny loss may take no bytes
    fusion_eqsim.report(chosen.rounds, chosen.fusion_batches)


if __name__ == "__main__":
    main()
