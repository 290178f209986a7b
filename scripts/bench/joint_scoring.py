"""Measures how fast an MM-Adapter scores image-text pairs, in pairs per second and in memory.

Required: the same scores in less memory, and 2.8 times as fast as the paper's form on two CPU
cores, with ViT-B/32's sizes and captions of 12 words. That form pads each caption to 77 tokens
and takes each pair through all of torch's layers, 128 pairs a call. The printed bound is the ratio
of operations (docs/costs.md). Where there is a GPU, it scores there, in float32 and in bfloat16.

    python -m scripts.bench.joint_scoring [--style Mdetr] [--images 32] [--texts 32] [--rounds 4]
"""

import importlib
import os
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.utils.flop_counter import FlopCounterMode

from scripts.bench.harness import (
    CONTEXT,
    DEVICE,
    WORDS,
    figure,
    in_new_process,
    medians,
    options,
    peak_memory,
)
from tests.tiny import Widths
from vlmtune.adapters.fused import FusedAdapter
from vlmtune.adapters.fusion_styles.base import FusionStyle
from vlmtune.adapters.fusion_styles.layers import with_cls
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.mm_pred import MMPred
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.types import Tokens

STYLES = {"Mdetr": "mdetr", "Flava": "flava", "Albef": "albef", "Fiber": "fiber",
          "FiberMM": "fiber_mm"}  # fmt: skip
PATCHES, IMAGE_WIDTH, WIDTH = 49, 768, 512
FORMS = ("straightforward", "vlmtune")
REQUIRED = 2.8  # times as fast, MDETR style, on two CPU cores


def naive_fusion(adapter: FusedAdapter, image: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    """The [CLS] outputs (P, c, w) of images (P, 49, w) and texts (P, 77, w), by torch's layers."""
    parts = cast(Any, adapter)
    cls = adapter.query.expand(len(image), -1, -1)
    patches = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device)
    both, hidden = torch.cat([image, text], dim=1), ~torch.cat([patches, mask], dim=1)
    style = type(adapter.style).__name__
    if style == "Mdetr":
        states = parts.encoder(both, src_key_padding_mask=hidden)
        return parts.decoder(cls, states, memory_key_padding_mask=hidden)
    if style == "Flava":
        both, hidden = torch.cat([cls, both], dim=1), ~with_cls(~hidden)
        return parts.encoder(both, src_key_padding_mask=hidden)[:, :1]
    if style == "FiberMM":
        states = parts.encoder(both, src_key_padding_mask=hidden)
        image, text = states.split([image.shape[1], text.shape[1]], dim=1)
    else:
        image = parts.image_encoder(image)
        text = parts.text_encoder(text, src_key_padding_mask=~mask)
    decoder = parts.decoder if style == "Albef" else parts.text_decoder
    words = torch.cat([cls[:, :1], text], dim=1)
    out = decoder(words, image, tgt_key_padding_mask=~with_cls(mask))[:, :1]
    if style == "Albef":
        return out
    patch_tokens = torch.cat([cls[:, 1:], image], dim=1)
    other = parts.image_decoder(patch_tokens, text, memory_key_padding_mask=~mask)[:, :1]
    return torch.cat([out, other], dim=1)


def naive_score_head(adapter: FusedAdapter, fused: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    """Scores (P,) of the [CLS] outputs, a cosine for each word unless they are compared."""
    parts = cast(Any, adapter)
    if isinstance(adapter, MMPred):
        return parts.predict(fused.flatten(1))[:, 0]
    if adapter.style.two_sided:
        cosines = cosine_similarity(fused[:, 0], fused[:, 1], dim=-1)
        return parts.log_scale.exp() * cosines + parts.bias
    each = cosine_similarity(fused[:, :, None], text[:, None], dim=-1)
    cosines = each.mean(dim=1)[:, :, None]
    mean = masked_mean(cosines, word_mask(mask, adapter.special))[:, 0]
    return parts.log_scale.exp() * mean + parts.bias


def naive_scores(adapter: FusedAdapter, image: Tokens, text: Tokens, pairs: int) -> Tensor:
    """Scores (N, M) of all images and texts, `pairs` of them in one call."""
    projected = adapter.normalized(adapter.project(image.values))
    rows = torch.arange(len(image), device=projected.device).repeat_interleave(len(text))
    columns = torch.arange(len(text), device=projected.device).repeat(len(image))
    scores = []
    for i, j in zip(rows.split(pairs), columns.split(pairs), strict=True):
        tokens, mask = text.values[j], text.mask[j]
        fused = naive_fusion(adapter, projected[i], adapter.normalized(tokens), mask)
        scores.append(naive_score_head(adapter, fused, tokens, mask))
    return torch.cat(scores).view(len(image), len(text))


@dataclass(frozen=True)
class Job:
    """Work of one process."""

    naive: bool
    style: str
    images: int
    texts: int
    pairs: int  # of one call of the straightforward form
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


class Scorer:
    """One form of one style, ready to score random tokens; captions are padded to 77 tokens."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(0)
        module = importlib.import_module(f"vlmtune.adapters.fusion_styles.{STYLES[job.style]}")
        adapter = MMAdapter(fusion=cast(FusionStyle, getattr(module, job.style)()))
        adapter.attach(Widths())
        self.job, self.adapter = job, adapter.eval().requires_grad_(False).to(job.device)
        generator = torch.Generator().manual_seed(1)
        image = torch.randn(job.images, PATCHES, IMAGE_WIDTH, generator=generator)
        text = torch.randn(job.texts, CONTEXT, WIDTH, generator=generator)
        mask = (torch.arange(CONTEXT) < len(WORDS) + 2).expand(job.texts, -1).clone()
        self.image = Tokens.full(image).to(job.device)
        self.text = Tokens(text * mask[:, :, None], mask).to(job.device)

    def scores(self) -> Tensor:
        """Scores all pairs once."""
        job = self.job
        with torch.autocast(job.device, job.dtype, enabled=job.dtype != torch.float32):
            if job.naive:
                scores = naive_scores(self.adapter, self.image, self.text, job.pairs)
            else:
                scores = self.adapter(self.image, self.text).values
        return scores.float().cpu()

    def operations(self) -> int:
        """Counts the operations of scoring all pairs."""
        # torch does not look into the kernel that its own layers otherwise run in.
        torch.backends.mha.set_fastpath_enabled(False)
        with FlopCounterMode(display=False) as counter:
            self.scores()
        torch.backends.mha.set_fastpath_enabled(True)
        return counter.get_total_flops()


def memory_of(job: Job) -> int:
    """Bytes that scoring all pairs takes on top of weights and features."""
    scorer = Scorer(job)
    scorer.scores()  # libraries allocate their own memory first
    before = peak_memory(reset=True)
    scorer.scores()
    return peak_memory() - before


def compare(job: Job, rounds: int) -> None:
    """Prints both forms side by side: scores, speed and memory."""
    forms = {name: Scorer(replace(job, naive=name != "vlmtune")) for name in FORMS}
    naive, ours = (scorer.scores() for scorer in forms.values())
    close = 1e-3 if job.dtype == torch.float32 else 0.1
    torch.testing.assert_close(ours, naive, rtol=close, atol=close)
    kind = f"{job.style}, {job.device}, {str(job.dtype).removeprefix('torch.')}"
    seconds = medians([scorer.scores for scorer in forms.values()], rounds)
    for (name, scorer), taken in zip(forms.items(), seconds, strict=True):
        rate = job.images * job.texts / taken
        # A process each tells their memory on a CPU apart.
        memory = in_new_process(memory_of, scorer.job)
        print(f"{kind}: {name} {rate:.1f} pairs/s, {memory / 2**20:.0f} MiB")
    print(f"{kind}: scores differ by at most {(ours - naive).abs().max():.1e}")
    required = ""
    if (job.style, job.device) == ("Mdetr", "cpu"):
        required = f"{REQUIRED}x"
    counts = [scorer.operations() for scorer in forms.values()]
    times, bound = seconds[0] / seconds[1], counts[0] / counts[1]
    figure(f"{kind}: pairs scored, times as fast", times, "x", bound, required)


def main() -> None:
    """Prints three lines for each style, device and type of number."""
    chosen = options(__doc__, style="Mdetr", images=32, texts=32, rounds=4, pairs=128)
    for style in STYLES if chosen.style == "all" else [chosen.style]:
        job = Job(False, style, chosen.images, chosen.texts, chosen.pairs, DEVICE)
        compare(job, chosen.rounds)
        if DEVICE == "cuda" or "TINY" in os.environ:
            compare(replace(job, dtype=torch.bfloat16), chosen.rounds)


if __name__ == "__main__":
    main()
