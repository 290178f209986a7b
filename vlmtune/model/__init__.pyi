# The public names of this room: type checkers and `__init__.py` read them here.

from .loading import check_checkpoint as check_checkpoint
from .loading import read_checkpoint as read_checkpoint
from .model import Model as Model
from .resolving import load as load
from .wise_ft import WiseFT as WiseFT
