"""Takes the results of runs, gives `report.json`, a Markdown table, CSV, LaTeX and one HTML page.

Compares runs item by item and lists what limits a number. Never loads a model or scores anything.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
