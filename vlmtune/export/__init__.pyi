# The public names of this room: type checkers and `__init__.py` read them here.

from .files import save_export as save_export
from .merging import save_merged as save_merged
from .publishing import push as push
from .to_onnx import save_onnx as save_onnx
