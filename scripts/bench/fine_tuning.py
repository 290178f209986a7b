"""Measures a step of full fine-tuning of ViT-B/32 by `vlmtune fit`'s parts and by open_clip's loop.

Random weights, InfoNCE, the same JPEG images with a caption of 12 words each, the same
preprocessing, AdamW in 32 bit. A step is the time from one call of the optimizer to the next, so
that it holds reading, decoding, both towers, the loss, the backward pass and all that a loop does
beside them. The two take turns. open_clip's loop gets images from files as its CSV reader gives
them: its WebDataset reader fails with webdataset 1.0, and its CSV reader needs pandas. `fit` has
the fused AdamW of configs/experiments/corpora/methods/full_finetuning.yaml, open_clip the one that
its command makes; `--same-optimizer` gives both the latter. Required: 1.3x on a CPU. `--half`
trains both in mixed precision with bfloat16; `--in-memory` gives both ready pixels on the device,
so that only the loops are compared.

    python -m scripts.bench.fine_tuning [--batch 16] [--steps 4] [--rounds 3] [--workers 8]
"""

import argparse
import io
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import torch
from open_clip_train.train import train_one_epoch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from data_builders.shard_builder import Record, ShardBuilder, image_group
from scripts.bench.gpu.strategies import ready as in_memory
from scripts.bench.harness import (
    DEVICE,
    TimedAdamW,
    captions,
    figure,
    fit_seconds,
    hide_warnings,
    in_turns,
    model_name,
    options,
    random_clip,
)
from tests.runs import Batches
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.types import Batch

SIZE = (500, 375)  # pixels of an image, as in most of COCO and Flickr30K
REQUIRED = 1.3


class Photos(ShardBuilder):
    """Smooth random JPEG images of a common size, each with one caption."""

    def __init__(self, count: int) -> None:
        super().__init__(256)
        self.count = count

    @override
    def records(self) -> Iterator[Record]:
        torch.manual_seed(0)
        for number, text in enumerate(captions(self.count)):
            yield image_group(f"r{number:05d}", {text: True}), [_photo()]


def _photo() -> bytes:
    noise = torch.randint(0, 256, (24, 32, 3), dtype=torch.uint8).numpy()
    buffer = io.BytesIO()
    Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class Files(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What open_clip's CSV reader gives: preprocessed images and padded captions."""

    def __init__(self, files: list[tuple[Path, str]], preprocess: Any, tokenizer: Any) -> None:
        self.files, self.preprocess, self.tokenizer = files, preprocess, tokenizer

    def __len__(self) -> int:
        return len(self.files)

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path, text = self.files[index]
        return self.preprocess(Image.open(str(path))), self.tokenizer([text])[0]


def ours(shards: Path, ready: list[Batch], chosen: argparse.Namespace) -> list[float]:
    """The seconds of each step of `fit`."""
    data: Any = ShardDataModule([ShardSet(str(shards))], chosen.batch, num_workers=chosen.workers)
    if ready:
        data = Batches(ready)
    fused = None if chosen.same_optimizer else True
    precision = "bf16-mixed" if chosen.half else "32-true"
    return fit_seconds(random_clip(), data, chosen.steps + 1, fused, precision=precision)


def theirs(
    files: list[tuple[Path, str]], ready: list[Batch], chosen: argparse.Namespace
) -> list[float]:
    """The seconds of each step of open_clip's loop."""
    batch = chosen.batch
    torch.manual_seed(0)
    model = open_clip.create_model(model_name(), output_dict=True, device=DEVICE)
    preprocess = open_clip.image_transform(224, is_train=False)
    tokenizer = open_clip.get_tokenizer(model_name())
    precision = "amp_bf16" if chosen.half else "fp32"
    arguments = {"device": DEVICE, "precision": precision, "batch_size": batch, "accum_freq": 1}
    arguments |= {"skip_scheduler": True, "grad_clip_norm": None, "log_every_n_steps": 10**9}
    arguments |= {"rank": 0, "local_rank": 0, "world_size": 1}
    arguments |= dict.fromkeys(("distill", "horovod", "wandb", "save_logs"), False)
    rows: Any = DataLoader(
        Files(files, preprocess, tokenizer),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=chosen.workers,
        pin_memory=DEVICE == "cuda",
    )
    if ready:
        tokenized: Any = [(one.pixels, tokenizer(list(one.texts))) for one in ready]
        rows = DataLoader(tokenized, batch_size=None)
    rows.num_samples, rows.num_batches = batch * (chosen.steps + 1), chosen.steps + 1
    data = {"train": SimpleNamespace(dataloader=rows, set_epoch=lambda epoch: None)}
    optimizer = TimedAdamW(model.parameters())
    loss = open_clip.ClipLoss()
    train_one_epoch(model, data, loss, 0, optimizer, None, None, None, SimpleNamespace(**arguments))
    return optimizer.seconds()[: chosen.steps]


def write_files(folder: Path, count: int) -> list[tuple[Path, str]]:
    """Writes the images as files; returns their paths and captions."""
    folder.mkdir()
    out = []
    for group, (image,) in Photos(count).records():
        assert isinstance(image, bytes)
        (folder / f"{group.key}.jpg").write_bytes(image)
        out.append((folder / f"{group.key}.jpg", group.texts[0]))
    return out


def main() -> None:
    """Prints one line."""
    torch.set_num_threads(1)
    chosen = options(
        __doc__,
        batch=16,
        steps=4,
        rounds=3,
        workers=0,
        same_optimizer=False,
        half=False,
        in_memory=False,
    )
    hide_warnings()
    count = chosen.batch * (chosen.steps + 1)
    ready: list[Batch] = []
    if chosen.in_memory:
        count = chosen.batch
        ready = in_memory(chosen.batch) * (chosen.steps + 1)
    with tempfile.TemporaryDirectory() as root:
        shards = Path(root) / "shards"
        Photos(count).build(shards, progress=False)
        files = write_files(Path(root) / "files", count)
        fit = partial(ours, shards, ready, chosen)
        peers = partial(theirs, files, ready, chosen)
        fitted, peer = in_turns([fit, peers], chosen.rounds)
    print(f"a step of {chosen.batch} pairs: open_clip {peer:.3f} s, vlmtune {fitted:.3f} s")
    kind = "bfloat16" if chosen.half else "float32"
    source = "pixels in memory" if chosen.in_memory else "images decoded"
    title = f"a step of {chosen.batch} pairs in {kind}, {source}: times as fast as open_clip"
    required = f"{REQUIRED}x" if DEVICE == "cpu" else ""
    figure(title, peer / fitted, "x", required=required)


if __name__ == "__main__":
    main()
