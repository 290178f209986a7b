# The public names of this room: type checkers and `__init__.py` read them here.

from .item_row import ItemRow as ItemRow
from .metric_value import MetricValue as MetricValue
from .result import Example as Example
from .result import Result as Result
