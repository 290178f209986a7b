"""Measures the suite of ARO, SugarCrepe and CREPE on ViT-B/32 against item-by-item evaluation.

The published scripts take one item after the other (ARO in batches of 32) through both towers, each
caption padded to 77 tokens, however often an image or a caption occurs. `Scorer` encodes each
distinct image, crop and caption once, captions cut to the longest of their batch, into a feature
store that the next adapter over the same frozen backbone reads. Four comparisons, each within one
run:

- First run, nothing stored. Required: 3x.
- Next adapter, a linear probe over the store. Required: 20x; its own work is a 512 x 512 matrix for
  each embedding, so that digests of files and the reading of rows decide.
- MM-Adapter on ARO's pairs, against pair by pair through backbone and adapter. Required: 5x.
- Metrics of Retrieval on random scores of 1,000 images and 5,000 captions. Required: under 0.2 s.

Weights and images are random: `--scale` of the counts, images of 64 x 64 pixels, crops that share
files as ARO's and CREPE's do. suite_parts.py has the counts and the bounds they set; the script
prints that of the counts it ran, too. `Scorer` takes batches of 16: at the published counts one of
256 holds captions of one length, at these it would hold all lengths. Both sides have the same
scores, which is checked. Loading and hashing of weights is left out. Time is that of the processor
where there is one thread (OMP_NUM_THREADS=1), which leaves other work on the machine out.

    python -m scripts.bench.suite [--scale 0.0025] [--joint-scale 0.0005]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from scripts.bench.suite_parts import ARO, CONTEXT, PARTS, Items, Part, bound, joint_bounds, make
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.open_clip import OpenClip
from vlmtune.benchmarks.retrieval import Retrieval
from vlmtune.data.images import read
from vlmtune.evaluation.scorer import Scorer
from vlmtune.types import Features, FeatureSpec, ImageRef

BATCH = 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# -- item by item ---------------------------------------------------------------------------------


def padded(backbone: OpenClip, texts: list[str], reads: FeatureSpec) -> Features:
    """Encodes texts as published code does: the tower sees `CONTEXT` tokens of each."""
    tower = backbone.text_tower
    assert tower is not None
    words = tower.words(texts)
    assert words.tokens is not None
    assert words.mask is not None
    longest = words.tokens.shape[1]
    missing = CONTEXT - longest
    tokens, mask = pad(words.tokens, (0, 0, 0, missing)), pad(words.mask, (0, missing))
    full = Features(tokens=tokens, mask=mask)
    layer = -1 if reads.kind == "pooled" else reads.layer
    state = tower.run(tower.start(full), 0, tower.layers + 1 + layer)
    if reads.kind == "pooled":
        return Features(pooled=tower.finish(state))
    assert state.tokens is not None
    return Features(tokens=state.tokens[:, :longest], mask=words.mask)


def picture(backbone: OpenClip, ref: ImageRef) -> Tensor:
    """The preprocessed image."""
    return backbone.preprocess(read(ref)).to(DEVICE)


@torch.no_grad()
def by_item(backbone: OpenClip, adapter: ZeroShot, items: Items) -> Tensor:
    """Scores batch by batch of items, an image and a caption as often as they occur."""
    scores = []
    for rows in torch.arange(items.part.items).split(items.part.batch):
        pixels = [picture(backbone, items.images[int(i)]) for i in items.owner[rows]]
        image = backbone.encode_image(torch.stack(pixels), adapter.image_input)
        parts = []
        for place in range(items.part.captions):
            texts = [items.texts[int(j)] for j in items.chosen[rows, place]]
            text = padded(backbone, texts, adapter.text_input)
            parts.append(
                adapter.compare_pairs(adapter.embed_image(image), adapter.embed_text(text))
            )
        scores.append(torch.stack(parts, dim=1).cpu())
    return torch.cat(scores).flatten()


@torch.no_grad()
def by_pair(backbone: OpenClip, adapter: Adapter, items: Items) -> Tensor:
    """Scores pair by pair, each through backbone and adapter."""
    scores = []
    for row, column in items.pairs().tolist():
        pixels = picture(backbone, items.images[row])[None]
        image = backbone.encode_image(pixels, adapter.image_input)
        text = padded(backbone, [items.texts[column]], adapter.text_input)
        scores.append(adapter(image, text).values.flatten().cpu())
    return torch.cat(scores)


# -- everything once ------------------------------------------------------------------------------


def by_scorer(backbone: Backbone, adapter: Adapter, suite: Sequence[Items], store: Path) -> Tensor:
    """Scores the suite in one session over `store`, as an evaluation does."""
    scorer = Scorer(backbone, adapter, store, BATCH)
    images = list(dict.fromkeys(image for items in suite for image in items.images))
    texts = list(dict.fromkeys(text for items in suite for text in items.texts))
    with scorer.session(images, texts):
        return torch.cat([scorer(x.images, x.texts, x.pairs()) for x in suite])


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What `work` returns, and the seconds that took (scores are on the CPU by then)."""
    alone = DEVICE == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    began = clock()
    result = work()
    return result, clock() - began


def compared(first: Tensor, second: Tensor) -> None:
    """Raises unless both sides have the same scores."""
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)


def attached(adapter: Adapter, backbone: Backbone) -> Adapter:
    """The adapter on `backbone`, in evaluation mode."""
    adapter.attach(backbone)
    return adapter.to(DEVICE).eval()


def described(suite: Sequence[Items]) -> str:
    """What a run consists of."""
    pairs = sum(len(items.pairs()) for items in suite)
    crops, texts = (sum(len(x) for x in kind) for kind in zip(*map(_parts, suite), strict=True))
    items = sum(x.part.items for x in suite)
    return f"{items} items of {pairs} pairs, {crops} distinct images and {texts} captions"


def _parts(items: Items) -> tuple[Sequence[ImageRef], Sequence[str]]:
    return items.images, items.texts


def dual(backbone: OpenClip, parts: Sequence[Part], root: Path) -> Iterator[str]:
    """The suite with zero-shot scores, then with a linear probe over the same store."""
    suite = [make(part, root / part.name, number) for number, part in enumerate(parts)]
    zero_shot = ZeroShot()
    attached(zero_shot, backbone)
    one = replace(suite[0], part=replace(suite[0].part, items=1))
    by_item(backbone, zero_shot, one)  # warms up
    expected, each = timed(lambda: torch.cat([by_item(backbone, zero_shot, x) for x in suite]))
    scores, first = timed(lambda: by_scorer(backbone, zero_shot, suite, root / "store"))
    compared(scores, expected)
    # Untrained, a probe has the scores of the backbone; its work is the same.
    probe = attached(LinearProbe(), backbone)
    scores, following = timed(lambda: by_scorer(backbone, probe, suite, root / "store"))
    compared(scores, expected)
    yield f"suite: {described(suite)}"
    yield (
        f"  item by item {each:.2f} s; first run {first:.2f} s: {each / first:.1f}x (required 3x; "
        f"bound {bound(PARTS):.1f}x at the published counts, {bound(PARTS, 12):.1f}x with 12 "
        f"tokens a caption, {bound([x.part for x in suite]):.1f}x at these)"
    )
    yield f"  next adapter {following:.3f} s: {each / following:.0f}x (required 20x)"


def joint(backbone: OpenClip, parts: Sequence[Part], root: Path) -> Iterator[str]:
    """ARO's pairs with an MM-Adapter, without a store and over it."""
    suite = [make(part, root / f"joint {part.name}", n) for n, part in enumerate(parts)]
    torch.manual_seed(0)
    adapter = attached(MMAdapter(), backbone)
    expected, each = timed(lambda: torch.cat([by_pair(backbone, adapter, x) for x in suite]))
    took = []
    for _ in range(2):
        scores, seconds = timed(lambda: by_scorer(backbone, adapter, suite, root / "joint"))
        compared(scores, expected)
        took.append(seconds)
    there, here = joint_bounds(ARO), joint_bounds([x.part for x in suite])
    yield f"MM-Adapter on ARO: {described(suite)}"
    for name, seconds, bounds in zip(("first run", "from the store"), took, (0, 1), strict=True):
        yield (
            f"  pair by pair {each:.2f} s, {name} {seconds:.2f} s: {each / seconds:.1f}x (required "
            f"5x; bound {there[bounds]:.1f}x at the published counts, {here[bounds]:.1f}x at these)"
        )


def retrieval(root: Path, rounds: int = 5) -> Iterator[str]:
    """Metrics on scores of 1,000 images and 5,000 captions."""
    folder = root / "retrieval"
    folder.mkdir()
    entries = []
    for i in range(1000):
        Image.new("RGB", (8, 8)).save(folder / f"{i}.png")
        sentences = [{"raw": f"caption {j} of image {i}"} for j in range(5)]
        entries.append(
            {"filepath": "", "filename": f"{i}.png", "split": "test", "sentences": sentences}
        )
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": entries, "dataset": "flickr30k"}))
    benchmark = Retrieval(str(path), str(folder))
    benchmark.load()
    scores = torch.randn(1000, 5000, generator=torch.Generator().manual_seed(0))
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        benchmark.evaluate(scores)
        took.append(time.perf_counter() - began)
    yield (
        f"retrieval metrics, 1,000 x 5,000 scores: {min(took):.3f} s, the best of {rounds} "
        "(required: under 0.2 s)"
    )


def main() -> None:
    """Prints the lines of each comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1 / 400, help="of the published counts")
    parser.add_argument("--joint-scale", type=float, default=1 / 2000, help="of ARO's counts")
    options = parser.parse_args()
    torch.manual_seed(0)
    backbone = OpenClip("ViT-B-32-quickgelu").to(DEVICE)
    assert backbone.fingerprint  # hashes the weights, once for all
    print(f"{DEVICE}, {torch.get_num_threads()} threads", flush=True)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for line in retrieval(folder):
            print(line, flush=True)
        for line in joint(backbone, [part.scaled(options.joint_scale) for part in ARO], folder):
            print(line, flush=True)
        for line in dual(backbone, [part.scaled(options.scale) for part in PARTS], folder):
            print(line, flush=True)


if __name__ == "__main__":
    main()
