"""Measures a step of full fine-tuning of ViT-B/32 by `vlmtune fit`'s parts and by open_clip's loop.

Random weights, InfoNCE, the same JPEG images with a caption of 12 words each, the same
preprocessing, AdamW in 32 bit. A step is the time from one call of the optimizer to the next, so
that it holds reading, decoding, both towers, the loss, the backward pass and all that a loop does
beside them. The two take turns. open_clip's loop gets images from files as its CSV reader gives
them: its WebDataset reader fails with webdataset 1.0, and its CSV reader needs pandas. `fit` has
the fused AdamW of configs/experiments/corpora/methods/full_finetuning.yaml, open_clip the one that
its command makes; `--same-optimizer` gives both the latter. Required: 1.3x. `--profile` lists the
functions in which `fit` spends its processor time, setup included.

    python -m scripts.bench.fine_tuning [--batch 16] [--steps 4] [--rounds 3]
"""

import argparse
import cProfile
import io
import pstats
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import torch
from open_clip_train.train import train_one_epoch
from PIL import Image
from pytorch_lightning import Trainer
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from data_builders.shard_builder import Record, ShardBuilder
from scripts.bench.harness import DEVICE, captions, options, random_clip
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.cli.fit import NOISE
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training.module import AdaptationModule
from vlmtune.training.run_monitor import RunMonitor
from vlmtune.types import Group

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
            key = f"r{number:05d}"
            truth = torch.ones(1, 1, dtype=torch.bool)
            yield Group(key, (key,), (text,), (text,), truth, (frozenset({text}),)), [_photo()]


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


class TimedAdamW(AdamW):
    """AdamW that notes the processor seconds at the end of each step."""

    def __init__(self, parameters: Any, fused: bool | None = None) -> None:
        super().__init__(parameters, lr=1e-5, fused=fused)
        self.clock = time.process_time if DEVICE == "cpu" else time.perf_counter
        self.ends: list[float] = []

    @override
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = super().step(closure)  # type: ignore[arg-type]
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        self.ends.append(self.clock())
        return loss

    def seconds(self) -> list[float]:
        """The time of each step after the first."""
        return [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]


def ours(shards: Path, batch: int, steps: int, fused: bool | None) -> list[float]:
    """The seconds of each step of `fit`, with the callback that it has by default."""
    optimizers: list[TimedAdamW] = []

    def optimizer(parameters: Any) -> TimedAdamW:
        optimizers.append(TimedAdamW(parameters, fused))
        return optimizers[-1]

    module = AdaptationModule(random_clip(), FullFineTuning(), [InfoNCE()], optimizer=optimizer)
    data = ShardDataModule([ShardSet(str(shards))], batch)
    off: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing"), False)
    off |= dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False)
    Trainer(
        max_steps=steps + 1, accelerator="auto", devices=1, callbacks=[RunMonitor()], **off
    ).fit(module, data)
    return optimizers[0].seconds()


def theirs(files: list[tuple[Path, str]], batch: int, steps: int) -> list[float]:
    """The seconds of each step of open_clip's loop."""
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-32-quickgelu", output_dict=True, device=DEVICE)
    preprocess = open_clip.image_transform(224, is_train=False)
    tokenizer = open_clip.get_tokenizer("ViT-B-32-quickgelu")
    arguments = argparse.Namespace(
        device=DEVICE,
        precision="fp32",
        distill=False,
        accum_freq=1,
        skip_scheduler=True,
        grad_clip_norm=None,
        log_every_n_steps=10**9,
        horovod=False,
        rank=0,
        local_rank=0,
        world_size=1,
        batch_size=batch,
        wandb=False,
        save_logs=False,
    )
    rows: Any = DataLoader(Files(files, preprocess, tokenizer), batch, shuffle=True, drop_last=True)
    rows.num_samples, rows.num_batches = len(files), len(rows)
    data = {"train": SimpleNamespace(dataloader=rows, set_epoch=lambda epoch: None)}
    optimizer = TimedAdamW(model.parameters())
    loss = open_clip.ClipLoss()
    train_one_epoch(model, data, loss, 0, optimizer, None, None, None, arguments)
    return optimizer.seconds()[:steps]


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
    chosen = options(__doc__, batch=16, steps=4, rounds=3, profile=False, same_optimizer=False)
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)
    count = chosen.batch * (chosen.steps + 1)
    fused = None if chosen.same_optimizer else True
    with tempfile.TemporaryDirectory() as root:
        shards = Path(root) / "shards"
        Photos(count).build(shards, progress=False)
        files = write_files(Path(root) / "files", count)
        works = {
            "vlmtune": partial(ours, shards, chosen.batch, chosen.steps, fused),
            "open_clip": partial(theirs, files, chosen.batch, chosen.steps),
        }
        if chosen.profile:
            with cProfile.Profile(time.process_time) as profile:
                works["vlmtune"]()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            return
        taken: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(chosen.rounds):
            for name, work in works.items():
                taken[name] += work()
        fitted, peer = (statistics.median(seconds) for seconds in taken.values())
        print(
            f"a step of {chosen.batch} pairs: open_clip {peer:.2f} s, vlmtune {fitted:.2f} s: "
            f"{peer / fitted:.2f}x (required {REQUIRED:.1f}x)"
        )


if __name__ == "__main__":
    main()
