"""What a benchmark reports: numbers, examples and the outcome of each item.

In: values that a benchmark or an evaluation computed. Out: the same values, for whoever shows them.
Never: a computation; these are plain values on the ground floor.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
