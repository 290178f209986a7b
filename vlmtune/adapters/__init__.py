"""What is trained on a backbone.

In: features of images and texts, as each adapter's `FeatureSpec` states them. Out: scores. Never:
losses, batches or ranks; an adapter does not know how it is trained.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
