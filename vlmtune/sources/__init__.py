"""Where the files of benchmarks, corpora and published weights come from, and how they come.

In: names of sources, or of the plug-ins that read them. Out: files below the data folder.
Never: terms that nobody accepted, or a file of a person overwritten.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
