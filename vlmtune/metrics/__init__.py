"""Metrics: pure functions, and `torchmetrics.Metric` classes over some of them.

In: scores and truth. Out: numbers with chance levels, 95 % intervals and tests. Never: a file, or a
model.

A tie is lost unless a benchmark passes another `ties`; AUROC counts it half.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
