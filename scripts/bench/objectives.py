"""Measures what EqSim adds to a training step of a dual and of a fusion encoder, and memory.

Time: forward and backward of InfoNCE + EqSim (as the paper has it) over InfoNCE alone, on random
embeddings of a global batch, against a whole training step of ViT-B/32 (224 px, 77 text tokens),
measured on a small batch and scaled: encoders take time in proportion to the batch, EqSim to its
square. Required: under 1 % of the step at 256, 1,024 and 4,096 pairs; the paper reports 2.6 %
(Wang et al. 2023, appendix A.4).

Memory: the peak of one rank's share of the loss at `--ranks` ranks (its rows and its columns of the
scores), against the whole matrix of scores on every rank, as plain gathering has it; each in a
process of its own, what is there before the loss subtracted (Linux). A share is 2 / ranks of the
whole, so with 8 ranks the scores take 4x less.

Fusion encoders: the table of fusion_eqsim.py, which says what it measures (required: under 1.4x).

    python scripts/bench/objectives.py [--batches 256 1024 4096] [--pairs 8] [--ranks 8]
"""

import argparse
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.backbones.open_clip import OpenClip
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import ShardedObjective
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import Embedded, FeatureSpec, Scores, ScoreShard, Targets

WIDTH = 512
SCALE = 100.0
REQUIRED = 0.01
POOLED = FeatureSpec("pooled", frozen=False)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Repeated(ProcessGroup):
    """Equal ranks, seen from one of them: the sums and rows of the others are its own."""

    def __init__(self, ranks: int) -> None:
        super().__init__(alone=True)
        self.ranks = ranks

    def sum(self, value: Any) -> Any:
        """Returns what equal ranks add up to."""
        return value * self.ranks

    def gather(self, value: Any) -> Any:
        """Returns the rows of all ranks."""
        return torch.cat([value, *[value.detach()] * (self.ranks - 1)])


def embeddings(rows: int, seed: int) -> Tensor:
    """Random normalised embeddings, the leaf of the backward pass."""
    generator = torch.Generator().manual_seed(seed)
    made = normalize(torch.randn(rows, WIDTH, generator=generator), dim=-1)
    return made.to(DEVICE).requires_grad_()


def scored(image: Tensor, text: Tensor) -> Scores:
    """Scores of embeddings, as a dual adapter has them."""
    values = SCALE * image @ text.T
    embedded = Embedded(image, text, torch.tensor(SCALE, device=DEVICE))
    return Scores(values, torch.ones_like(values, dtype=torch.bool), embedded)


def diagonal(rows: int, columns: int) -> Targets:
    """Image i is of text i and of no other."""
    true = torch.eye(max(rows, columns), dtype=torch.bool, device=DEVICE)[:rows, :columns]
    return Targets(true, torch.ones_like(true), true)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Median time of `work`, after one round to warm up."""
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def loss_seconds(batch: int, objectives: list[ShardedObjective], rounds: int) -> float:
    """Time of scores, losses and gradients of embeddings at one global batch."""
    image, text, targets = embeddings(batch, 0), embeddings(batch, 1), diagonal(batch, batch)

    def step() -> None:
        scores = scored(image, text)
        torch.stack([o.weight * o(scores, targets) for o in objectives]).sum().backward()

    return seconds(step, rounds)


def step_seconds(pairs: int, rounds: int) -> float:
    """Time of one training step of ViT-B/32 a pair of image and caption."""
    backbone = OpenClip("ViT-B-32-quickgelu").to(DEVICE).requires_grad_(True)
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-6)
    pixels = torch.randn(pairs, 3, 224, 224, device=DEVICE)
    # open_clip's own step sees captions padded to 77 tokens.
    texts = ["a photo of the thing " * 15] * pairs
    objective, targets = InfoNCE(), diagonal(pairs, pairs)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            image = backbone.encode_image(pixels, POOLED).pooled
            text = backbone.encode_text(texts, POOLED).pooled
        assert image is not None
        assert text is not None
        scores = Scores.full(SCALE * normalize(image, dim=-1) @ normalize(text, dim=-1).T)
        optimizer.zero_grad()
        objective(scores, targets).backward()
        optimizer.step()

    return seconds(step, rounds) / pairs


def peak(batch: int, ranks: int, shared: bool, queue: Any) -> None:
    """Puts the peak memory, in bytes, of one rank's loss into `queue`."""
    torch.set_num_threads(1)
    objectives = [InfoNCE(), EqSim()]
    own = batch // ranks
    image, text = embeddings(batch, 0), embeddings(batch, 1)
    warm = scored(image[:8], text[:8])  # libraries take their own memory first
    torch.stack([o(warm, diagonal(8, 8)) for o in objectives]).sum().backward()
    before = _peak(reset=True)
    if shared:
        rows, columns = scored(image[:own], text), scored(image, text[:own])
        share = ScoreShard(rows, diagonal(own, batch), columns, diagonal(batch, own))
        losses = [o.shard_loss(share, Repeated(ranks)) for o in objectives]
    else:
        scores, targets = scored(image, text), diagonal(batch, batch)
        shard = ScoreShard(scores, targets, scores, targets)
        losses = [o.shard_loss(shard, ProcessGroup(alone=True)) for o in objectives]
    torch.stack(losses).sum().backward()
    queue.put(_peak() - before)


def _peak(reset: bool = False) -> int:
    """The most bytes held so far; with `reset` what is held now, from which it counts on."""
    if DEVICE == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def measured(batch: int, ranks: int, shared: bool) -> int:
    """Runs `peak` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=peak, args=(batch, ranks, shared, queue))
    process.start()
    result = queue.get()
    process.join()
    return result


def main() -> None:
    """Prints one line for each batch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--pairs", type=int, default=8, help="batch the encoders are timed on")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    each = step_seconds(options.pairs, options.rounds)
    print(f"{DEVICE}, {torch.get_num_threads()} threads; ViT-B/32 step: {each:.4f} s a pair")
    for batch in options.batches:
        plain = loss_seconds(batch, [InfoNCE()], options.rounds)
        added = loss_seconds(batch, [InfoNCE(), EqSim()], options.rounds) - plain
        share = added / (each * batch)
        print(
            f"batch {batch:5d}: InfoNCE {plain:.3f} s, EqSim adds {added:.3f} s, "
            f"{share:.3%} of a step (required: under {REQUIRED:.0%})"
        )
    batch = options.batches[-1]
    whole, own = (measured(batch, options.ranks, shared) for shared in (False, True))
    print(
        f"batch {batch}, {options.ranks} ranks: {whole / 1e6:.0f} MB with all scores on each, "
        f"{own / 1e6:.0f} MB with its share, {whole / own:.1f}x less "
        f"(scores alone: {options.ranks / 2:.0f}x)",
        flush=True,
    )
    fusion = [sys.executable, str(Path(__file__).with_name("fusion_eqsim.py"))]
    subprocess.run([*fusion, "--rounds", str(options.rounds)], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
