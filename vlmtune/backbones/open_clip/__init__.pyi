# The public names of this room: type checkers and `__init__.py` read them here.

from .open_clip import OpenClip as OpenClip
