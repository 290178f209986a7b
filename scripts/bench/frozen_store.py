"""Measures an epoch from the feature store against an epoch through the frozen backbone.

ViT-B/32 at 224 px, random weights, captions of 12 words, the same training steps on preprocessed
images; captions are padded to 77 tokens as in published code, or cut as in `OpenClip`. Required: 5x
for the MM-Adapter, 50x for the linear probe, 2.2x for the last two layers (bounds: docs/costs.md).
`--memory` prints the peak of one step of the MM-Adapter, required under 6 GB with 256 images.

    python -m scripts.bench.frozen_store [--images 32] [--rounds 3]
    python -m scripts.bench.frozen_store --memory --images 256 --batch 256
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from scripts.bench.harness import (
    CONTEXT,
    DEVICE,
    captions,
    encode_padded,
    figure,
    medians,
    options,
    peak_memory,
    random_clip,
    timed,
)
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.features.store import FeatureStore, open_or_build_store
from vlmtune.features.store_key import StoreKey
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.types import Features, Targets

PAIRS = 4  # texts an image is scored against
LIMIT = 6.0  # GB of the process in a step of 256 images of 4 pairs
# Name -> adapter, the factor that is required, and its bound.
CASES: dict[str, tuple[Callable[[], Adapter], float, float | None]] = {
    "MM-Adapter": (MMAdapter, 5.0, 6.8),
    "linear probe": (LinearProbe, 50.0, None),
    "last 2 layers": (LastBlocks, 2.2, 2.7),
}


class Epoch:
    """Training steps over all images, with features encoded each time or read from stores."""

    def __init__(self, adapter: Adapter, images: int, batch: int, root: Path) -> None:
        self.backbone, self.adapter, self.batch = random_clip(), adapter, batch
        adapter.attach(self.backbone)
        adapter.to(DEVICE)
        self.pixels, self.texts = torch.randn(images, 3, 224, 224), captions(PAIRS * images)
        trained = [*adapter.parameters(), *self.backbone.parameters()]
        self.optimizer = torch.optim.AdamW([p for p in trained if p.requires_grad], lr=1e-5)
        self.objective = PairBCE()
        self.image_ids = [str(i) for i in range(images)]
        self.stores = (
            self._store(root, "image", self.image_ids, self._images),
            self._store(root, "text", self.texts, self._texts),
        )

    def _store(
        self, root: Path, modality: str, ids: list[str], encode: Callable[[slice], Features]
    ) -> FeatureStore:
        spec = getattr(self.adapter, f"{modality}_input")
        key = StoreKey("bench", modality, spec, "bench", "float32")  # type: ignore[arg-type]

        def chunks() -> Iterator[tuple[list[str], Features]]:
            for start in range(0, len(ids), self.batch):
                rows = slice(start, start + self.batch)
                yield ids[rows], encode(rows).to("cpu")

        return open_or_build_store(root, key, chunks, len(ids))

    @torch.no_grad()
    def _images(self, rows: slice) -> Features:
        return self.backbone.encode_image(self.pixels[rows].to(DEVICE), self.adapter.image_input)

    @torch.no_grad()
    def _texts(self, rows: slice) -> Features:
        return self.backbone.encode_text(self.texts[rows], self.adapter.text_input)

    def run(self, source: str) -> None:
        """Trains on every image once, with features from "store", "padded" or "cut"."""
        for start in range(0, len(self.pixels), self.batch):
            rows = slice(start, start + self.batch)
            columns = slice(PAIRS * start, PAIRS * (start + self.batch))
            if source == "store":
                image = self.stores[0].features(self.image_ids[rows]).to(DEVICE)
                text = self.stores[1].features(self.texts[columns]).to(DEVICE)
            elif source == "padded":
                image = self._images(rows)
                texts = self.texts[columns]
                text = encode_padded(self.backbone, texts, self.adapter.text_input)
            else:
                image, text = self._images(rows), self._texts(columns)
            same_group = torch.eye(len(image), dtype=torch.bool, device=DEVICE)
            same_group = same_group.repeat_interleave(PAIRS, 1)
            truth = same_group.clone()
            truth[:, 1::PAIRS] = False
            scores = self.adapter(image, text, same_group)
            loss = self.objective(scores, Targets(truth, same_group, same_group))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def main() -> None:
    """Prints one line for each adapter."""
    chosen = options(__doc__, images=32, batch=16, rounds=3, memory=False)
    with tempfile.TemporaryDirectory() as root:
        for name, (make, required, limit) in CASES.items():
            epoch = Epoch(make(), chosen.images, chosen.batch, Path(root) / name)
            if chosen.memory:
                _, seconds = timed(partial(epoch.run, "store"))
                print(
                    f"{name}: {seconds:.1f} s, at most {peak_memory() / 1e9:.1f} GB "
                    f"(required with 256 images in one step on a CPU: under {LIMIT:.0f} GB)"
                )
                return
            runs = [partial(epoch.run, source) for source in ("padded", "cut", "store")]
            padded, cut, stored = medians(runs, chosen.rounds)
            print(
                f"{name}: {padded:.2f} s with captions of {CONTEXT} tokens, {cut:.2f} s with "
                f"cut ones, {stored:.3f} s from the store"
            )
            title = f"{name}: an epoch from the store, times as fast"
            figure(title, padded / stored, "x", limit, f"{required:.1f}x")
            figure(f"{name}: against captions cut on both sides", cut / stored, "x")


if __name__ == "__main__":
    main()
