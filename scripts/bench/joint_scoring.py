"""Measures how fast an MM-Adapter scores image-text pairs, in pairs per second and in memory.

Requirement: at least 3 times as fast as the straightforward form, on two CPU cores, with ViT-B/32's
sizes (49 image tokens of width 768, text tokens of width 512) and captions of 12 words; the same
scores, in less memory.

Straightforward is the paper's form: each caption padded to 77 tokens, and each pair taken through
the whole stack of torch's own transformer layers, with the same weights, 128 pairs in one call. Its
projected image tokens, too, are computed once per image.

How much faster it can be by counting multiplications, for the MDETR style: a pair has T tokens,
126 padded (49 + 77) and 63 trimmed (49 + 12 + start and end); w is 512 and the feed-forward layer
has 4 w hidden units.

    straightforward  encoder: queries, keys, values and output 4 T w^2, feed-forward 8 T w^2,
                     attention 2 T^2 w; decoder: keys and values 2 T w^2, and for one token
                     6 w^2 + 8 w^2 and 2 T w.  T = 126: 482 million
    vlmtune          the same without queries, keys and values of the encoder (3 T w^2, once per
                     image and caption) and without keys and values of the decoder (w^2 for folding
                     the query, once; 2 h T w for h = 4 heads), trimmed.  T = 63: 156 million

That is 3.1; the script prints it for the style it runs, with what is computed once spread over the
pairs. Measured: both forms on the same features and weights, each in a child process of its own,
which has its own peak of memory; they take turns, and the best of the rounds counts, the one that
other work on the machine disturbed least. Time on the CPU leaves such work out where there is one
thread (OMP_NUM_THREADS=1); several wait for each other. On CUDA, where there is a GPU, also in
bfloat16.

    python scripts/bench/joint_scoring.py [--style Mdetr] [--images 32] [--texts 32] [--rounds 4]
"""

import argparse
import contextlib
import importlib
import multiprocessing
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vlmtune.adapters.fused import FusedAdapter
from vlmtune.adapters.fusion_styles.base import FusionStyle, with_cls
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.mm_pred import MMPred
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.types import Features, FeatureSpec

STYLES = {
    "Mdetr": "mdetr",
    "Flava": "flava",
    "Albef": "albef",
    "Fiber": "fiber",
    "FiberMM": "fiber_mm",
}
PATCHES, IMAGE_WIDTH, WIDTH, WORDS, CONTEXT = 49, 768, 512, 12, 77
REQUIRED = 3.0  # times as fast, MDETR style, on two CPU cores


class ViTB32(Backbone):
    """The sizes of CLIP ViT-B/32 and no model: all that an adapter asks of a backbone."""

    embed_dim, image_width, text_width, image_tokens = 512, IMAGE_WIDTH, WIDTH, PATCHES
    text_special, logit_scale = (1, 1), 100.0

    @property
    def fingerprint(self) -> str:
        """A name, as there are no weights."""
        return "sizes"

    def preprocess(self, image: Image.Image) -> Tensor:
        """Is never called."""
        raise NotImplementedError

    def encode_image(self, pixels: Tensor, reads: FeatureSpec) -> Features:
        """Is never called."""
        raise NotImplementedError

    def encode_text(self, texts: Sequence[str], reads: FeatureSpec) -> Features:
        """Is never called."""
        raise NotImplementedError


# -- the straightforward form ---------------------------------------------------------------------


def naive_fusion(adapter: FusedAdapter, image: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    """The [CLS] outputs (P, c, w) of projected images (P, 49, w) and texts (P, 77, w).

    It calls the adapter's layers by `forward`, which is torch's, on all tokens of all pairs.
    """
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


def naive_judge(adapter: FusedAdapter, fused: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    """Scores (P,) of the [CLS] outputs, a cosine for each word where there is one output."""
    parts = cast(Any, adapter)
    if isinstance(adapter, MMPred):
        return parts.predict(fused.flatten(1))[:, 0]
    if fused.shape[1] == 2:
        cosines = cosine_similarity(fused[:, 0], fused[:, 1], dim=-1)
        return parts.log_scale.exp() * cosines + parts.bias
    cosines = cosine_similarity(fused, text, dim=-1)[:, :, None]
    mean = masked_mean(cosines, word_mask(mask, adapter.special))[:, 0]
    return parts.log_scale.exp() * mean + parts.bias


def naive_scores(adapter: FusedAdapter, image: Features, text: Features, pairs: int) -> Tensor:
    """Scores (N, M) of all images and texts, `pairs` of them in one call."""
    assert image.tokens is not None
    assert text.tokens is not None
    assert text.mask is not None
    projected = adapter.normalized(adapter.project(image.tokens))
    rows = torch.arange(len(image), device=projected.device).repeat_interleave(len(text))
    columns = torch.arange(len(text), device=projected.device).repeat(len(image))
    scores = []
    for i, j in zip(rows.split(pairs), columns.split(pairs), strict=True):
        tokens, mask = text.tokens[j], text.mask[j]
        fused = naive_fusion(adapter, projected[i], adapter.normalized(tokens), mask)
        scores.append(naive_judge(adapter, fused, tokens, mask))
    return torch.cat(scores).view(len(image), len(text))


# -- the measurement ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What one child process measures."""

    naive: bool
    style: str
    images: int
    texts: int
    rounds: int
    pairs: int
    device: str
    dtype: torch.dtype = torch.float32


def features(job: Job) -> tuple[Features, Features]:
    """Random tokens; captions have `WORDS` words, a start and an end, and are padded to 77."""
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(job.images, PATCHES, IMAGE_WIDTH, generator=generator)
    text = torch.randn(job.texts, CONTEXT, WIDTH, generator=generator)
    mask = (torch.arange(CONTEXT) < WORDS + 2).expand(job.texts, -1).clone()
    real = torch.ones(image.shape[:2], dtype=torch.bool)
    text = text * mask[:, :, None]
    return Features(tokens=image, mask=real), Features(tokens=text, mask=mask)


def peak(device: str) -> int:
    """Bytes this process has taken at most: of the GPU, or of the machine."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Round(NamedTuple):
    """What a round gives: scores, time, and bytes taken on top of weights and features."""

    scores: Tensor
    seconds: float
    cpu_seconds: float
    taken: int


class Scorer:
    """One form, ready to score, in a process of its own."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(0)
        module = importlib.import_module(f"vlmtune.adapters.fusion_styles.{STYLES[job.style]}")
        adapter = MMAdapter(fusion=cast(FusionStyle, getattr(module, job.style)()))
        adapter.attach(ViTB32())
        self.job, self.adapter = job, adapter.eval().to(job.device)
        self.image, self.text = (part.to(job.device) for part in features(job))
        self.before = peak(job.device)

    def round(self) -> Round:
        """Scores all pairs once."""
        job = self.job
        context = torch.autocast(job.device, job.dtype, enabled=job.dtype != torch.float32)
        began, worked = time.perf_counter(), time.process_time()
        with torch.no_grad(), context:
            if job.naive:
                scores = naive_scores(self.adapter, self.image, self.text, job.pairs)
            else:
                scores = self.adapter(self.image, self.text).values
        scores = scores.float().cpu()  # waits for the device
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
        return Round(scores, seconds, cpu_seconds, peak(job.device) - self.before)


scorer: Scorer  # of a child process


def start(job: Job) -> None:
    """Makes the scorer of a child process."""
    global scorer
    scorer = Scorer(job)


def one_round() -> Round:
    """Runs a round in a child process."""
    return scorer.round()


def multiplications(job: Job) -> float:
    """Multiplications of a pair: the straightforward form's over vlmtune's, in default depth."""
    w, h, padded, real = WIDTH, 4, PATCHES + CONTEXT, PATCHES + WORDS + 2
    one = 8 * w * w  # the feed-forward layer for one token
    images, texts, pairs = job.images, job.texts, job.images * job.texts

    def encoder(tokens: int) -> int:
        return tokens * (4 * w * w + one) + 2 * tokens**2 * w

    def decoder(target: int, memory: int) -> int:
        own = target * (4 * w * w + 2 * w * w + one) + 2 * target**2 * w
        return own + memory * 2 * w * w + 2 * target * memory * w

    def read(memory: int) -> int:  # one token, its query folded
        return 2 * h * memory * w + 2 * w * w + one

    def joint(tokens: int) -> int:  # without queries, keys and values
        return encoder(tokens) - 3 * tokens * w * w

    def fold(tokens: int) -> int:  # self-attention of [CLS], and its folded query
        return 2 * h * tokens * w + 6 * w * w

    once = 3 * w * w * (images * PATCHES + texts * (WORDS + 2))
    sides = images * encoder(PATCHES) + texts * encoder(WORDS + 2)
    albef = decoder(1 + CONTEXT, PATCHES)
    fiber = albef + decoder(1 + PATCHES, CONTEXT)
    reads = read(PATCHES) + read(WORDS + 2)
    folds = images * fold(1 + PATCHES), texts * fold(1 + WORDS + 2)
    naive, ours = {
        "Mdetr": (encoder(padded) + decoder(1, padded), once / pairs + joint(real) + read(real)),
        "Flava": (
            3 * encoder(1 + padded),
            once / pairs + joint(1 + real) + encoder(1 + real) + read(1 + real) + 2 * w * w,
        ),
        "Albef": (
            encoder(PATCHES) + encoder(CONTEXT) + albef,
            (sides + folds[1]) / pairs + read(PATCHES),
        ),
        "Fiber": (
            encoder(PATCHES) + encoder(CONTEXT) + fiber,
            (sides + sum(folds)) / pairs + reads,
        ),
        "FiberMM": (
            encoder(padded) + fiber,
            once / pairs + joint(real) + fold(1 + PATCHES) + fold(1 + WORDS + 2) + reads,
        ),
    }[job.style]
    return naive / ours


def compare(job: Job) -> None:
    """Prints both forms side by side: scores, speed and memory."""
    context = multiprocessing.get_context("spawn")
    jobs = [replace(job, naive=naive) for naive in (True, False)]
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(context.Pool(1, start, (each,))) for each in jobs]
        # In turns, so that other work slows both; the first round warms up.
        rounds = [[pool.apply(one_round) for pool in pools] for _ in range(job.rounds + 1)][1:]
    naive, ours = (
        turns[-1]._replace(
            seconds=min(turn.seconds for turn in turns),
            cpu_seconds=min(turn.cpu_seconds for turn in turns),
        )
        for turns in zip(*rounds, strict=True)
    )
    close = 1e-3 if job.dtype == torch.float32 else 0.1
    torch.testing.assert_close(ours.scores, naive.scores, rtol=close, atol=close)
    kind = f"{job.style}, {job.device}, {str(job.dtype).removeprefix('torch.')}"
    for name, each in (("straightforward", naive), ("vlmtune", ours)):
        rate = job.images * job.texts / each.seconds
        print(f"{kind}: {name} {rate:.1f} pairs/s, {each.taken / 2**20:.0f} MiB")
    notes = [f"by multiplications {multiplications(job):.2f}"]
    if job.device == "cpu":
        notes.append(f"by time on the CPU {naive.cpu_seconds / ours.cpu_seconds:.2f}")
    if (job.style, job.device) == ("Mdetr", "cpu"):
        notes.append(f"required: {REQUIRED}")
    largest = (ours.scores - naive.scores).abs().max()
    print(f"{kind}: {naive.seconds / ours.seconds:.2f} times as fast ({', '.join(notes)})")
    print(f"{kind}: scores differ by {largest:.1e} at most", flush=True)


def main() -> None:
    """Prints four lines for each device and type of number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--style", choices=[*STYLES, "all"], default="Mdetr")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=128, help="of one straightforward call")
    options = parser.parse_args()
    for style in STYLES if options.style == "all" else [options.style]:
        sizes = (options.images, options.texts, options.rounds, options.pairs)
        job = Job(False, style, *sizes, device="cpu")
        compare(job)
        if torch.cuda.is_available():
            gpu = replace(job, device="cuda", images=8 * job.images, texts=8 * job.texts, pairs=512)
            compare(gpu)
            compare(replace(gpu, dtype=torch.bfloat16))


if __name__ == "__main__":
    main()
