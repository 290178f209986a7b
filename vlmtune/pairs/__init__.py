"""Pair policies choose the negatives: the pairs of a batch that a joint adapter scores.

In: the targets of a batch. Out: a mask of image-text pairs. Never: images, texts or the loss.
One policy a file. Hard-negative captions are made by `data.caption_negatives`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
