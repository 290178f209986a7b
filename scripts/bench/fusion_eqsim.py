"""Measures what EqSim adds to a training step of a fusion encoder, in pairs scored and in time.

A step as METER fine-tunes (Dou et al. 2022): each image is matched with its caption and 15 false
ones, 8 of them hard. EqSim (Wang et al. 2023, appendix C) compares an anchor (I0, T0) with each
false caption's own pair (Ik, Tk), so that s(Ik, T0) and s(Ik, Tk) are needed too: with negatives
from anywhere in the corpus 1 + 3 x 15 = 46 pairs an anchor instead of 16, which is 2.9 times as
many; the paper reports 1.95 times the time of a step, its encoders and optimizer included.

Here negatives come from the batch. s(Ik, Tk) is then another anchor's positive and already known.
Only s(Ik, T0) is new, and it is known already where Ik drew T0 too. With N pairs in the batch and
p = 15 / (N - 1), captions drawn uniformly, an anchor has

    1 + (N - 1) (2 p - p^2)  pairs: 1.00 times those of ITM for N = 16, 1.32 for 24, 1.48 for 32,
                             1.71 for 64 and 31 / 16 = 1.94 for very many.

So one by one (`RankingPairs(mirrored=True)`) the required 1.4x holds for batches up to about 27.
Drawn mutually (`MutualPairs`: Ik meets T0 exactly where I0 meets Tk) nothing is new at any size:
1.00x. The bound of the time is the ratio of pairs: all else in a step is the same. Required:
under 1.4x.

Measured: forward, backward and AdamW of BLIP's text encoder with cross-attention, random and small
by default, all blocks and the matching head trained; what it reads of images and captions is frozen
and made before, so that a step is nothing but fusion and no encoder hides what EqSim adds. Time is
that of the processor where there is one thread, which leaves other work on the machine out.

    python scripts/bench/fusion_eqsim.py [--batches 16 24 32 64] [--width 256] [--layers 2]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn.functional import normalize
from transformers import (
    BlipConfig,
    BlipForImageTextRetrieval,
    BlipImageProcessor,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from vlmtune.adapters.matching import Matching
from vlmtune.backbones.blip import Blip
from vlmtune.objectives.base import ShardedObjective
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.itm import ITM
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.mutual_pairs import MutualPairs
from vlmtune.pairs.ranking_pairs import RankingPairs
from vlmtune.types import Scores, Targets

WORDS = ("two", "small", "red", "cubes", "on", "the", "left", "of", "a", "blue", "glass", "sphere")
NEGATIVES, HARD, REQUIRED, PAPER = 15, 8, 1.4, 1.95
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def write_blip(folder: Path, width: int, layers: int) -> None:
    """Writes a random BLIP: images of 112 px in patches of 16, a word-level vocabulary."""
    special = ("<pad>", "<unk>", "<cls>", "<sep>")
    ids = {word: i for i, word in enumerate((*special, *WORDS))}
    words = Tokenizer(models.WordLevel(ids, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<cls>", ids["<cls>"]), ("<sep>", ids["<sep>"])]
    words.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>", special_tokens=ends
    )
    named = {"unk_token": "<unk>", "pad_token": "<pad>"}
    named |= {"cls_token": "<cls>", "sep_token": "<sep>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
    layer = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 4}
    config = BlipConfig(
        text_config={
            **layer,
            "num_hidden_layers": layers,
            "vocab_size": len(ids),
            "max_position_embeddings": 16,
            "encoder_hidden_size": width,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "sep_token_id": 3,
            "pad_token_id": 0,
        },
        vision_config={
            **layer,
            "num_hidden_layers": 1,
            "image_size": 112,
            "patch_size": 16,
            "initializer_range": 0.02,
        },
        image_text_hidden_size=64,
    )
    logging.disable_progress_bar()
    torch.manual_seed(0)
    BlipForImageTextRetrieval(config).save_pretrained(folder)
    BlipImageProcessor(size={"height": 112, "width": 112}).save_pretrained(folder)


def expected(batch: int) -> float:
    """Pairs of an anchor with EqSim over those without, captions drawn uniformly."""
    drawn = min(1.0, NEGATIVES / (batch - 1))
    return (1 + (batch - 1) * (2 * drawn - drawn**2)) / (1 + (batch - 1) * drawn)


class Steps:
    """Training steps of a fusion encoder on one batch.

    Args:
        folder: The model.
        batch: Images and captions of the batch.
    """

    def __init__(self, folder: Path, batch: int) -> None:
        self.backbone = Blip(str(folder)).to(DEVICE)
        self.adapter = Matching(blocks=len(self.backbone.model.text_encoder.encoder.layer))
        self.adapter.attach(self.backbone)
        torch.manual_seed(0)
        orders = (torch.randperm(len(WORDS)) for _ in range(batch))
        texts = [" ".join(WORDS[int(i)] for i in order) for order in orders]
        with torch.no_grad():
            pixels = torch.randn(batch, 3, 112, 112, device=DEVICE)
            self.image = self.backbone.encode_image(pixels, self.adapter.image_input)
            self.text = self.backbone.encode_text(texts, self.adapter.text_input)
        trained = [p for p in self.backbone.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6)
        true = torch.eye(batch, dtype=torch.bool, device=DEVICE)
        self.targets = Targets(true, torch.ones_like(true), true)
        self.reference = self._reference(batch)

    def _reference(self, batch: int) -> Tensor:
        """Cosines over CLIP's temperature, as of captions that mean much what their image does."""
        meaning = torch.randn(batch, 64)
        image, text = (normalize(meaning + 0.5 * torch.randn(batch, 64), dim=1) for _ in range(2))
        return (image @ text.T / 0.07).to(DEVICE)

    def pairs(self, policy: PairPolicy, seed: int) -> Tensor:
        """The pairs of a step."""
        return policy(self.targets, torch.Generator().manual_seed(seed), self.reference)

    def run(self, objectives: list[ShardedObjective], pairs: Tensor) -> float:
        """Takes one step; returns the seconds that took."""
        alone = DEVICE == "cpu" and torch.get_num_threads() == 1
        clock = time.process_time if alone else time.perf_counter
        began = clock()
        scores = self.adapter(self.image, self.text, pairs)
        scores = Scores(scores.values, scores.computed, reference=self.reference)
        losses = [o.weight * o(scores, self.targets) for o in objectives]
        self.optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        self.optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return clock() - began


def report(folder: Path, batch: int, rounds: int) -> None:
    """Prints the line of one batch size."""
    steps = Steps(folder, batch)
    plain: list[ShardedObjective] = [ITM()]
    both = [*plain, EqSim(normalise="sigmoid", ranked_by="reference", k=HARD)]
    ways: tuple[tuple[list[ShardedObjective], PairPolicy], ...] = (
        (plain, RankingPairs(NEGATIVES, HARD)),
        (both, RankingPairs(NEGATIVES, HARD, mirrored=True)),
        (both, MutualPairs(NEGATIVES, HARD)),
    )
    taken, counts = [], []
    for number in range(rounds + 1):  # the first warms up
        chosen = [steps.pairs(policy, number) for _, policy in ways]
        counts.append([int(pairs.sum()) for pairs in chosen])
        # In turn, so that other work on the machine touches all alike.
        taken.append([steps.run(o, p) for (o, _), p in zip(ways, chosen, strict=True)])
    times = [statistics.median(way) for way in zip(*taken[1:], strict=True)]
    pairs = [statistics.mean(way) / batch for way in zip(*counts[1:], strict=True)]
    print(f"batch {batch:3d}: {pairs[0]:.1f} pairs an anchor, {times[0]:.2f} s with ITM alone")
    for name, count, seconds, bound in zip(
        ("one by one", "mutually"), pairs[1:], times[1:], (expected(batch), 1.0), strict=True
    ):
        print(
            f"  EqSim, drawn {name}: {count / pairs[0]:.2f}x the pairs (expected {bound:.2f}x), "
            f"{seconds / times[0]:.2f}x the time (required under {REQUIRED}x, paper {PAPER}x)",
            flush=True,
        )


def main() -> None:
    """Prints one line for each batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 24, 32, 64])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{DEVICE}, {torch.get_num_threads()} threads; fusion of {options.layers} blocks, width "
        f"{options.width}; {NEGATIVES} negatives, {HARD} of them hard"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_blip(Path(folder), options.width, options.layers)
        for batch in options.batches:
            report(Path(folder), batch, options.rounds)


if __name__ == "__main__":
    main()
