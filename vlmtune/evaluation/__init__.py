"""Evaluation: a model scores images and texts, and benchmarks measure it.

In: a model, images and texts, benchmarks. Out: scores and results, each input encoded once.
Never: a change of any weight.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
