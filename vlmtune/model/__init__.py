"""How everything gets a model: from a hub name, a folder, a checkpoint or an export.

In: a name or a path. Out: a `Model`, which scores images against texts.
Never: a pickle read, a file written, or an import from a package that the user did not allow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
