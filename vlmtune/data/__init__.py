"""Shards to batches of groups.

In: folders of records. Out: batches, a function of data, seed and position alone. Never: a model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
