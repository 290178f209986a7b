# The public names of this room: type checkers and `__init__.py` read them here.

from .build import build_index as build_index
from .index import Hit as Hit
from .index import Index as Index
