"""Images, texts and benchmarks in, scores and results out, each input encoded once.

It never trains, and never changes a weight.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
