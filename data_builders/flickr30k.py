"""Flickr30K (Young et al. 2014) in Karpathy's splits; see `karpathy`."""

from data_builders.karpathy import KarpathyBuilder


class Flickr30kBuilder(KarpathyBuilder):
    """Flickr30K: 29,000 images for training, 1,014 for validation, 1,000 for test.

    `path` is `dataset_flickr30k.json`, `images` the folder `flickr30k-images`.
    """
