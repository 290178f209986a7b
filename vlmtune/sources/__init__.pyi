# The public names of this room: type checkers and `__init__.py` read them here.

from .downloads import download as download
from .order import Order as Order
from .order import orders as orders
from .source import DataSource as DataSource
from .source import sources as sources
