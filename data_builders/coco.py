"""COCO Captions (Chen et al. 2015) in Karpathy's splits; see `karpathy`."""

from data_builders.karpathy import KarpathyBuilder
from data_builders.measured import COCO


class CocoBuilder(KarpathyBuilder):
    """COCO: 82,783 + 30,504 images for training, 5,000 for validation, 5,000 for test.

    `path` is `dataset_coco.json`; `images` holds `train2014` and `val2014`.
    """

    corpus = COCO
