# The public names of this room: type checkers and `__init__.py` read them here.

from .base import Backbone as Backbone
from .hf.align import Align as Align
from .hf.blip import Blip as Blip
from .hf.blip2 import Blip2 as Blip2
from .hf.bridgetower import BridgeTower as BridgeTower
from .hf.flava import Flava as Flava
from .hf.hf_clip import HFCLIP as HFCLIP
from .hf.llava import Llava as Llava
from .hf.metaclip2 import MetaCLIP2 as MetaCLIP2
from .hf.siglip import SigLIP as SigLIP
from .hf.siglip2_naflex import SigLIP2NaFlex as SigLIP2NaFlex
from .hf.vilt import Vilt as Vilt
from .open_clip.open_clip import OpenClip as OpenClip
from .timm_image import TimmImage as TimmImage
