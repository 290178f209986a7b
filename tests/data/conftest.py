from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from data_builders.shard_builder import Record, ShardBuilder
from tests.tiny import encoded
from vlmtune.data.record_index import record_index
from vlmtune.data.shards import ShardSet
from vlmtune.types import Group


def png(shade: int, size: tuple[int, int] = (8, 8)) -> bytes:
    return encoded(Image.new("RGB", size, (shade % 256, 10, 20)))


def spoil(data: ShardSet, key: str) -> None:
    """Overwrites the first image of a record, all sizes kept."""
    place = next(place for place in record_index([data]) if place.key == key)
    offset, size = place.spans["0.png"]
    content = place.shard.read_bytes()
    place.shard.write_bytes(content[:offset] + bytes(size) + content[offset + size :])


class Numbered(ShardBuilder):
    """`count` records of one image and one caption each, but every third has two of both."""

    def __init__(self, count: int, records_per_shard: int, prefix: str) -> None:
        super().__init__(records_per_shard)
        self.count, self.prefix = count, prefix

    def records(self) -> Iterator[Record]:
        for number in range(self.count):
            k = 2 if number % 3 == 0 else 1
            names = [f"{self.prefix}{number}-{i}" for i in range(k)]
            group = Group(
                key=f"{self.prefix}{number}",
                image_ids=tuple(f"image-{name}" for name in names),
                text_ids=tuple(f"text-{name}" for name in names),
                texts=tuple(f"caption {name}" for name in names),
                truth=torch.eye(k, dtype=torch.bool),
                true_ids=tuple(frozenset({f"text-{name}"}) for name in names),
            )
            yield group, [png(number + i) for i in range(k)]


@pytest.fixture
def encoded_png() -> Callable[..., bytes]:
    return png


@pytest.fixture
def make_set(tmp_path: Path) -> Callable[..., ShardSet]:
    """Writes a shard set of `count` records and opens it."""

    def make(count: int, per_shard: int = 1000, prefix: str = "r", **arguments: Any) -> ShardSet:
        folder = tmp_path / f"{prefix}-{count}-{per_shard}"
        Numbered(count, per_shard, prefix).build(folder, progress=False)
        return ShardSet(str(folder), **arguments)

    return make


@pytest.fixture
def damage_set() -> Callable[[ShardSet, bytes, bytes], None]:
    """Overwrites bytes in the first shard of a set, all sizes kept."""

    def damage(data: ShardSet, old: bytes, new: bytes) -> None:
        file = data.files[0]
        content = file.read_bytes()
        assert old in content
        assert len(old) == len(new)
        file.write_bytes(content.replace(old, new))

    return damage
