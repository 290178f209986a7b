"""Measures what EqSim adds to a training step of a fusion encoder, in pairs scored and in time.

A step as in METER (Dou et al. 2022): each image with its caption and 15 false ones of the batch, 8
hard. Required: under 1.4 times the time; docs/costs.md derives the bound, the ratio of pairs.
Measured: forward, backward and AdamW of BLIP's text encoder, random and small; inputs are frozen.
`objectives.py` prints it.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers.utils import logging

from scripts.bench.harness import DEVICE, WORDS, captions, figure, medians
from scripts.random_models import write_blip
from vlmtune.adapters.matching import Matching
from vlmtune.backbones.hf.blip import Blip
from vlmtune.objectives.base import ShardedObjective
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.itm import ITM
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.mutual_pairs import MutualPairs
from vlmtune.pairs.ranking_pairs import RankingPairs
from vlmtune.types import Scores, Targets

BATCHES = (16, 24, 32, 64)
WIDTH, LAYERS = 256, (1, 2)  # of the image tower, and of the text tower
IMAGE = (112, 16)  # pixels of a side of an image, and of a patch
NEGATIVES, HARD, REQUIRED, PAPER = 15, 8, 1.4, 1.95
SEEDS = 4  # selections of pairs that a step cycles through


def expected(batch: int) -> float:
    """Pairs of an anchor with EqSim over those without, captions sampled uniformly."""
    p = min(1.0, NEGATIVES / (batch - 1))
    return (1 + (batch - 1) * (2 * p - p**2)) / (1 + (batch - 1) * p)


class Way:
    """Training steps on one batch with one policy and one sum of objectives."""

    def __init__(
        self, folder: Path, batch: int, policy: PairPolicy, objectives: list[ShardedObjective]
    ) -> None:
        self.objectives, self.steps = objectives, 0
        backbone = Blip(str(folder)).to(DEVICE)
        self.adapter = Matching(blocks=len(backbone.model.text_encoder.encoder.layer))
        self.adapter.attach(backbone)
        torch.manual_seed(0)
        with torch.no_grad():
            pixels = torch.randn(batch, 3, 112, 112, device=DEVICE)
            self.image = backbone.encode_image(pixels, self.adapter.image_input)
            self.text = backbone.encode_text(captions(batch), self.adapter.text_input)
        trained = [p for p in backbone.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6)
        true = torch.eye(batch, dtype=torch.bool, device=DEVICE)
        self.targets = Targets(true, torch.ones_like(true), true)
        # Cosines over CLIP's temperature: each caption means about what its image shows.
        meaning = torch.randn(batch, 64)
        image = normalize(meaning + 0.5 * torch.randn(batch, 64), dim=1)
        text = normalize(meaning + 0.5 * torch.randn(batch, 64), dim=1)
        self.reference: Tensor = (image @ text.T / 0.07).to(DEVICE)
        generators = (torch.Generator().manual_seed(seed) for seed in range(SEEDS))
        self.pairs = [policy(self.targets, g, self.reference) for g in generators]

    @property
    def pairs_per_anchor(self) -> float:
        """Mean number of pairs that a step scores for each image."""
        return statistics.mean(int(p.sum()) / len(p) for p in self.pairs)

    def step(self) -> None:
        """Takes one training step."""
        pairs = self.pairs[self.steps % SEEDS]
        self.steps += 1
        scores = self.adapter(self.image, self.text, pairs)
        scores = Scores(scores.values, scores.computed, reference=self.reference)
        losses = [o.weight * o(scores, self.targets) for o in self.objectives]
        self.optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        self.optimizer.step()


def report(rounds: int, batches: Sequence[int]) -> None:
    """Prints three lines for each batch size."""
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = write_blip(Path(name), WORDS, WIDTH, LAYERS, IMAGE)
        for batch in batches:
            _report(folder, batch, rounds)


def _report(folder: Path, batch: int, rounds: int) -> None:
    eqsim = EqSim(normalise="sigmoid", ranked_by="reference", k=HARD)
    ways = [
        Way(folder, batch, RankingPairs(NEGATIVES, HARD), [ITM()]),
        Way(folder, batch, RankingPairs(NEGATIVES, HARD, mirrored=True), [ITM(), eqsim]),
        Way(folder, batch, MutualPairs(NEGATIVES, HARD), [ITM(), eqsim]),
    ]
    plain, *seconds = medians([way.step for way in ways], rounds)
    pairs = ways[0].pairs_per_anchor
    print(f"batch {batch:3d}: {pairs:.1f} pairs an anchor, {plain:.2f} s with ITM alone")
    names, bounds = ("one by one", "mutually"), (expected(batch), 1.0)
    for name, way, taken, bound in zip(names, ways[1:], seconds, bounds, strict=True):
        times = way.pairs_per_anchor / pairs
        print(f"  EqSim, pairs sampled {name}: {times:.2f}x the pairs (bound {bound:.2f}x)")
        title = f"a step with EqSim of a fusion encoder, {batch} images, pairs sampled {name}"
        required = f"under {REQUIRED}x, paper's forward pass {PAPER}x"
        figure(title, taken / plain, "x", required=required)
