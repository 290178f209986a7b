"""Measures a data worker's memory and time to its first batch for corpora of two sizes.

Required: memory and time that do not grow with the records. One tar of 1,000 real records is
written; every other shard is a hard link to it with an index file of its own, so that 10 million
records take 1 GB of disk. All reading is real, but the page cache holds the tar, so times are of
a warm cache. What a worker holds is what it would hold of distinct tars.

    python -m scripts.bench.corpus_size [--records 100000 10000000] [--batches 200]
"""

import io
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image
from typing_extensions import override

from data_builders.shard_builder import Record, ShardBuilder, image_group
from scripts.bench.harness import in_new_process, options, process_bytes
from vlmtune.data.sample_order import Consumer
from vlmtune.data.schema import MANIFEST, Manifest
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.data.tar_index import SUFFIX, open_index

SHARD = 1000  # records in a tar


class Captioned(ShardBuilder):
    """Random images of 64 pixels with five captions each."""

    @override
    def records(self) -> Iterator[Record]:
        noise = np.random.default_rng(0)
        for number in range(SHARD):
            image = io.BytesIO()
            Image.fromarray(noise.integers(0, 256, (64, 64, 3), np.uint8)).save(image, "JPEG")
            texts = {f"caption {n} of image {number}": True for n in range(5)}
            yield image_group(f"i{number}", texts, key=f"r{number}"), [image.getvalue()]


def write_corpus(folder: Path, records: int) -> None:
    """Writes one tar, and links it as often as the corpus needs."""
    Captioned(SHARD).build(folder, progress=False)
    (first,) = ShardSet(str(folder)).manifest.shards
    tar = folder / first.file
    open_index(tar, first)
    index = tar.with_suffix(SUFFIX).read_bytes()
    shards = [first]
    for number in range(1, records // SHARD):
        name = f"shard-{number:06d}.tar"
        os.link(tar, folder / name)
        shards.append(replace(first, file=name))
        (folder / name).with_suffix(SUFFIX).write_bytes(index)
    manifest = Manifest("scripts.bench.corpus_size.Captioned", {}, {}, tuple(shards))
    (folder / MANIFEST).write_text(manifest.to_json())


def work(folder: Path, start: int, batches: int) -> tuple[float, int, int]:
    """Reads a worker's batches from a position on.

    Returns the seconds to the first batch, and by how much private memory grew until then and in
    all; mapped files do not count.
    """
    stream = GroupStream((ShardSet(str(folder)),), 64)
    before, began = process_bytes("RssAnon"), time.perf_counter()
    read = stream.batches(1, Consumer(1, 4, 0, 2), start)
    next(read)
    seconds, first = time.perf_counter() - began, process_bytes("RssAnon")
    for _ in islice(read, batches):
        pass
    return seconds, first - before, process_bytes("RssAnon") - before


def main() -> None:
    """Prints a line for each corpus and position."""
    chosen = options(__doc__, records=[100_000, 10_000_000], batches=200)
    with tempfile.TemporaryDirectory() as root:
        for records in chosen.records:
            folder = Path(root) / str(records)
            write_corpus(folder, records)
            for start in (0, records // 2):
                seconds, first, last = in_new_process(work, folder, start, chosen.batches)
                print(
                    f"{records:,} records from position {start:,}: first batch after "
                    f"{seconds:.2f} s with {first / 2**20:.1f} MB; after {chosen.batches} batches "
                    f"of 64 {last / 2**20:.1f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
