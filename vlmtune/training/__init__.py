"""Batches in, gradients, checkpoints and reports out, exact on any number of ranks.

It trains any adapter with any objective, and never names one (but for `methods`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
