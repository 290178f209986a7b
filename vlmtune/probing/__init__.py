"""Images in, what their embeddings know out: which transformation was applied, which class it is.

It never trains the model: probes are small networks on frozen embeddings.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
