# The public names of this room: type checkers and `__init__.py` read them here.

from .base import Objective as Objective
from .base import ShardedObjective as ShardedObjective
from .c2lip import C2LIP as C2LIP
from .ce_clip import CEClip as CEClip
from .clic import CLIC as CLIC
from .cyclip import CyClip as CyClip
from .degla import DeGLA as DeGLA
from .distillation import Distillation as Distillation
from .eqsim import EqSim as EqSim
from .fsc_clip import FSCClip as FSCClip
from .hard_negative import HardNegative as HardNegative
from .info_nce import InfoNCE as InfoNCE
from .itm import ITM as ITM
from .on_embeddings import OnEmbeddings as OnEmbeddings
from .pair_bce import PairBCE as PairBCE
from .rank_kl import RankKL as RankKL
from .read_alignment import ReadAlignment as ReadAlignment
from .sigmoid import Sigmoid as Sigmoid
from .text_recovery import TextRecovery as TextRecovery
from .triplet_clip import TripletClip as TripletClip
from .unit_contrast import UnitContrast as UnitContrast
