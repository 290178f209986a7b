"""Many images: encoded once into a folder, then found by captions.

In: image files and a model; later a caption. Out: the files that fit it best, with their scores.
Never: an image read again to answer a query, or anything unpickled.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
