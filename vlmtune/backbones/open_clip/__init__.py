"""Every model of open_clip, tower by tower.

In: the name of a model and of its weights. Out: an `OpenClip` backbone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
