# The public names of this room: type checkers and `__init__.py` read them here.

from .align import Align as Align
from .base import Backbone as Backbone
from .blip import Blip as Blip
from .blip2 import Blip2 as Blip2
from .bridgetower import BridgeTower as BridgeTower
from .flava import Flava as Flava
from .hf_clip import HFCLIP as HFCLIP
from .llava import Llava as Llava
from .metaclip2 import MetaCLIP2 as MetaCLIP2
from .open_clip import OpenClip as OpenClip
from .siglip import SigLIP as SigLIP
from .siglip2_naflex import SigLIP2NaFlex as SigLIP2NaFlex
from .timm_image import TimmImage as TimmImage
from .vilt import Vilt as Vilt
