# The public names of the package: type checkers and `__init__.py` read them here.

from . import adapters as adapters
from . import backbones as backbones
from . import benchmarks as benchmarks
from . import data as data
from . import errors as errors
from . import evaluation as evaluation
from . import export as export
from . import metrics as metrics
from . import model as model
from . import objectives as objectives
from . import pairs as pairs
from . import probing as probing
from . import report as report
from . import results as results
from . import search as search
from . import sources as sources
from . import training as training
from . import types as types
from .model import load as load

__version__: str
