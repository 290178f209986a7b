# The public names of this room: type checkers and `__init__.py` read them here.

from .files import FILES as FILES
from .files import save_export as save_export
from .loading import check_checkpoint as check_checkpoint
from .loading import read_checkpoint as read_checkpoint
from .merging import save_merged as save_merged
from .model import Model as Model
from .publishing import push as push
from .resolving import load as load
from .resolving import resolve as resolve
from .to_onnx import save_onnx as save_onnx
from .wise_ft import WiseFT as WiseFT
