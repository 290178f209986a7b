"""Shards to batches: takes folders of records, gives collated batches of groups.

It never runs a model, and what it gives is a function of the data, the seed and the position alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
