"""Shows the results of runs side by side, compares them item by item, lists what limits a number.

In: results of runs. Out: `report.json`, Markdown, CSV, LaTeX and one HTML page. Never: a model
loaded, or anything scored.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
