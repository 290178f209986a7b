"""Flickr30K (Young et al. 2014) in Karpathy's splits."""

from collections.abc import Sequence
from pathlib import Path

from data_builders.images import LIMIT
from data_builders.karpathy import KarpathyBuilder


class Flickr30kBuilder(KarpathyBuilder):
    """Flickr30K: 29,000 images for training, 1,014 for validation, 1,000 for test.

    Args:
        path: `dataset_flickr30k.json`.
        images: Folder `flickr30k-images`.
        splits: Of "train", "val", "test".
        missing: See `KarpathyBuilder`.
        records_per_shard: See `ShardBuilder`.
    """

    def __init__(
        self,
        path: Path,
        images: Path,
        splits: Sequence[str] = ("train",),
        missing: float = LIMIT,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(path, images, splits, missing, records_per_shard)
