"""Pre-trained vision-language models.

In: images and captions, and a `FeatureSpec`. Out: pooled vectors or tokens.
Never: training; a backbone does not know which adapter uses it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
