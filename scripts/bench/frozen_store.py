"""Measures an epoch from the feature store against an epoch through the frozen backbone.

ViT-B/32 at 224 px with random weights, captions of 12 words. All epochs take the same training
steps (forward, backward, AdamW) on the same preprocessed images. One reads what is frozen from the
store; the others encode it in each step, with captions padded to 77 tokens as published code has
them, and cut to the longest of the batch as `OpenClip` does. Reading and decoding of image files is
left out of all: it would only favour the store.

Bounds against the padded epoch, by multiplications in millions, a backward pass counting as two
forward ones. The image tower takes 4,370 an image, the text tower 38 a token: 2,900 a caption of
77.
With B for what is frozen and A for the training of the rest, an image, the bound is (B + A) / A:

- MM-Adapter, 4 pairs an image: B = 4,370 + 4 x 2,900 = 16,000. The paper's form takes 3.2 for each
  of 63 tokens of a pair in its encoder and 0.5 in its decoder, 3 x 4 x 231 = 2,770 in training: 6.8
  (and less is needed, as the first layer's projections are shared between pairs).
- Linear probe: A is below 1, so that the optimizer and the reading of rows decide.
- Last two of the twelve blocks of both towers: (10 + 3 x 2) / (3 x 2) = 2.7 (captions cut or not;
  against padded ones more, as those that are trained on are cut).

Required: 5x for the MM-Adapter, 50x for the linear probe, 2.2x for the last two blocks.

Memory: with `--memory`, the peak of the whole process (model and stores included) over one step of
the MM-Adapter with 256 images of 4 pairs. Required: under 6 GB on a CPU. A pair keeps 3.0 MB for
the backward pass: 512 x 19 numbers of 4 bytes for each of its 63 tokens and [CLS], and 512 x 4 for
each token as gathered. 1,024 pairs make 3.1 GB; beyond 3 GiB activations are computed again.

    python scripts/bench/frozen_store.py [--images 32] [--rounds 3]
    python scripts/bench/frozen_store.py --memory --images 256
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import pad

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.backbones.open_clip import OpenClip
from vlmtune.features.store import FeatureStore, StoreKey, open_or_build
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.types import Features, FeatureSpec, Targets

PAIRS = 4  # texts an image is scored against
CONTEXT = 77  # tokens of a padded caption
WORDS = ("two", "small", "red", "cubes", "on", "the", "left", "of", "a", "blue", "glass", "sphere")
WAYS = ("padded", "cut", "store")
LIMIT = 6.0  # GB of the process, training the MM-Adapter on 256 images of 4 pairs in one step
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """An adapter, the factor that is required and the bound."""

    name: str
    make: Callable[[], Adapter]
    required: float
    bound: float | None


CASES = (
    Case("MM-Adapter", MMAdapter, 5.0, 6.8),
    Case("linear probe", LinearProbe, 50.0, None),
    Case("last 2 blocks", LastBlocks, 2.2, 2.7),
)


class Epoch:
    """Training steps over all images, features encoded each time or read from stores.

    Args:
        case: What is trained.
        images: Number of images.
        batch: Images of a step.
        root: Folder of the stores.
    """

    def __init__(self, case: Case, images: int, batch: int, root: Path) -> None:
        torch.manual_seed(0)
        self.backbone = OpenClip("ViT-B-32-quickgelu").to(DEVICE)
        self.adapter = case.make()
        self.adapter.attach(self.backbone)
        self.adapter.to(DEVICE)
        self.pixels = torch.randn(images, 3, 224, 224)
        self.batch = batch
        # Captions of the twelve words in another order each, so that none repeats.
        orders = (torch.randperm(12) for _ in range(PAIRS * images))
        self.texts = [" ".join(WORDS[int(i)] for i in order) for order in orders]
        trained = [*self.adapter.parameters(), *self.backbone.parameters()]
        self.optimizer = torch.optim.AdamW([p for p in trained if p.requires_grad], lr=1e-5)
        self.objective = PairBCE()
        self.image_ids = [str(i) for i in range(images)]
        self.stores = (
            self._store(root / case.name, "image", self.adapter.image_input, self.image_ids),
            self._store(root / case.name, "text", self.adapter.text_input, self.texts),
        )

    def _store(self, root: Path, modality: str, reads: FeatureSpec, ids: list[str]) -> FeatureStore:
        key = StoreKey("bench", modality, reads, "bench", "float32")  # type: ignore[arg-type]
        every = range(0, len(ids), self.batch)

        def blocks() -> Iterator[tuple[list[str], Features]]:
            for start in every:
                rows = slice(start, start + self.batch)
                encode = self._images if modality == "image" else self._texts
                yield ids[rows], encode(rows).to("cpu")

        return open_or_build(root, key, blocks, len(ids))

    def _images(self, rows: slice) -> Features:
        with torch.no_grad():
            return self.backbone.encode_image(self.pixels[rows], self.adapter.image_input)

    def _texts(self, rows: slice) -> Features:
        with torch.no_grad():
            return self.backbone.encode_text(self.texts[rows], self.adapter.text_input)

    def _padded(self, rows: slice) -> Features:
        """As `_texts`, the tower seeing `CONTEXT` tokens of each caption."""
        tower, reads = self.backbone.text_tower, self.adapter.text_input
        assert tower is not None
        with torch.no_grad():
            words = tower.words(self.texts[rows])
            assert words.tokens is not None
            assert words.mask is not None
            longest = words.tokens.shape[1]
            missing = CONTEXT - longest
            full = Features(
                tokens=pad(words.tokens, (0, 0, 0, missing)), mask=pad(words.mask, (0, missing))
            )
            layer = -1 if reads.kind == "pooled" else reads.layer
            state = tower.run(tower.start(full), 0, tower.layers + 1 + layer)
            if reads.kind == "pooled":
                return Features(pooled=tower.finish(state))
            assert state.tokens is not None
            return Features(tokens=state.tokens[:, :longest], mask=words.mask)

    def run(self, way: str) -> float:
        """Trains on every image once; returns the seconds that took.

        Args:
            way: Where features come from: "store", "padded" or "cut".
        """
        began = time.perf_counter()
        for start in range(0, len(self.pixels), self.batch):
            rows = slice(start, start + self.batch)
            columns = slice(PAIRS * start, PAIRS * (start + self.batch))
            if way == "store":
                image = self.stores[0].features(self.image_ids[rows]).to(DEVICE)
                text = self.stores[1].features(self.texts[columns]).to(DEVICE)
            else:
                encode = self._padded if way == "padded" else self._texts
                image, text = self._images(rows), encode(columns)
            own = torch.eye(len(image), dtype=torch.bool, device=DEVICE).repeat_interleave(PAIRS, 1)
            truth = own.clone()
            truth[:, 1::PAIRS] = False
            loss = self.objective(self.adapter(image, text, own), Targets(truth, own, own))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def memory(images: int) -> None:
    """Prints the peak memory of one step of the MM-Adapter from the store."""
    with tempfile.TemporaryDirectory() as root:
        epoch = Epoch(CASES[0], images, images, Path(root))
        seconds = epoch.run("store")
    if DEVICE == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{CASES[0].name}: a step of {images} images of {PAIRS} pairs in {seconds:.1f} s, at most "
        f"{peak / 1e9:.1f} GB (required on a CPU with 256 images: under {LIMIT:.0f} GB)"
    )


def main() -> None:
    """Prints one line for each strategy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="of one step, and no speed")
    options = parser.parse_args()
    if options.memory:
        memory(options.images)
        return
    print(f"{DEVICE}, {torch.get_num_threads()} threads, {options.images} images of {PAIRS} pairs")
    with tempfile.TemporaryDirectory() as root:
        for case in CASES:
            epoch = Epoch(case, options.images, options.batch, Path(root))
            for way in WAYS:
                epoch.run(way)
            # In turn, so that other work on the machine touches all alike.
            taken = [[epoch.run(way) for way in WAYS] for _ in range(options.rounds)]
            padded, cut, stored = (statistics.median(way) for way in zip(*taken, strict=True))
            bound = "" if case.bound is None else f", bound {case.bound:.1f}x"
            print(
                f"{case.name}: {padded:.2f} s with captions of {CONTEXT} tokens, {cut:.2f} s with "
                f"cut ones, {stored:.3f} s from the store: {padded / stored:.1f}x "
                f"(required {case.required:.1f}x{bound}) and {cut / stored:.1f}x faster"
            )


if __name__ == "__main__":
    main()
