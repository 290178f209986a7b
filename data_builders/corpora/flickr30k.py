"""Flickr30K (Young et al. 2014) in Karpathy's splits.

In: `dataset_flickr30k.json` and images. Out: images with captions; see `karpathy`.
"""

from data_builders.corpora.karpathy import KarpathyBuilder
from data_builders.measured import FLICKR30K


class Flickr30kBuilder(KarpathyBuilder):
    """`dataset_flickr30k.json`: 29,000 images for training, 1,014 to validate, 1,000 for test."""

    corpus = FLICKR30K
