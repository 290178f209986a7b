"""COCO Captions (Chen et al. 2015) in Karpathy's splits."""

from collections.abc import Sequence
from pathlib import Path

from data_builders.images import LIMIT
from data_builders.karpathy import KarpathyBuilder


class CocoBuilder(KarpathyBuilder):
    """COCO: 82,783 + 30,504 images for training, 5,000 for validation, 5,000 for test.

    Args:
        path: `dataset_coco.json`.
        images: Folder that holds `train2014` and `val2014`.
        splits: Of "train", "restval", "val", "test"; the usual training set is the first two.
        missing: See `KarpathyBuilder`.
        records_per_shard: See `ShardBuilder`.
    """

    def __init__(
        self,
        path: Path,
        images: Path,
        splits: Sequence[str] = ("train", "restval"),
        missing: float = LIMIT,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(path, images, splits, missing, records_per_shard)
