"""Measures the loader against the bare decoding of the same images on one thread.

JPEG images of 500 x 375 pixels in shards; one process reads them. The bound decodes the same bytes
from memory by PIL and preprocesses them, and does nothing else. Required: 0.8 of its speed. The
speed of decoding alone is printed too. `--workers` adds the speed with so many processes.

    python -m scripts.bench.loader [--images 256] [--batch 64] [--rounds 5] [--workers 8]
"""

import io
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import torch
from PIL import Image

from scripts.bench.fine_tuning import Photos
from scripts.bench.harness import figure, medians, options, timed
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet

REQUIRED = 0.8


class Preprocessing(torch.nn.Module):
    """Gives the loader a backbone's preprocessing without a backbone."""

    def __init__(self, preprocess: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.preprocess = preprocess


def datamodule(shards: Path, batch: int, workers: int, preprocess: Any) -> ShardDataModule:
    """A DataModule that is ready to load, without a trainer."""
    data = ShardDataModule([ShardSet(str(shards))], batch, num_workers=workers)
    module = Preprocessing(preprocess)
    run: Any = SimpleNamespace(global_rank=0, world_size=1, training=False, lightning_module=module)
    data.trainer = run
    data.setup("fit")
    return data


def load(data: ShardDataModule) -> int:
    """Reads an epoch; returns the number of its images."""
    return sum(len(batch.image_ids) for batch in data.train_dataloader())


def decode(images: Sequence[bytes], change: Callable[[Any], Any] | None) -> None:
    """Decodes each image, and preprocesses it."""
    for content in images:
        image = Image.open(io.BytesIO(content)).convert("RGB")
        if change is not None:
            change(image)


def main() -> None:
    """Prints one line."""
    torch.set_num_threads(1)
    chosen = options(__doc__, images=256, batch=64, rounds=5, workers=0)
    preprocess: Any = open_clip.image_transform(224, is_train=False)
    with tempfile.TemporaryDirectory() as root:
        shards = Path(root) / "shards"
        builder = Photos(chosen.images)
        builder.build(shards, progress=False)
        images = [image for _, (image,) in builder.records() if isinstance(image, bytes)]
        data = datamodule(shards, chosen.batch, 0, preprocess)
        decoded = partial(decode, images)
        works = [partial(load, data), partial(decoded, preprocess), partial(decoded, None)]
        loaded, bound, alone = medians(works, chosen.rounds)
        if chosen.workers:
            many = datamodule(shards, chosen.batch, chosen.workers, preprocess)
            _, seconds = timed(partial(load, many), wall=True)
            figure(f"loader, {chosen.workers} workers", chosen.images / seconds, "images/s")
    rates = [f"{chosen.images / seconds:.0f}" for seconds in (loaded, bound, alone)]
    print(f"images/s: loader {rates[0]}, decoded and preprocessed {rates[1]}, decoded {rates[2]}")
    title = "loader, of the speed of decoding and preprocessing"
    figure(title, bound / loaded, "x", 1, f"{REQUIRED}x")


if __name__ == "__main__":
    main()
