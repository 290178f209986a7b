# The public names of this room: type checkers and `__init__.py` read them here.

from .base import Adapter as Adapter
from .base import DualAdapter as DualAdapter
from .base import JointAdapter as JointAdapter
from .bottleneck import Bottleneck as Bottleneck
from .compressed import Compressed as Compressed
from .context_prompts import ContextPrompts as ContextPrompts
from .deep_prompts import DeepPrompts as DeepPrompts
from .ft_late import FTLate as FTLate
from .full_finetuning import FullFineTuning as FullFineTuning
from .fusion_tuning import FusionTuning as FusionTuning
from .grounded_vectors import GroundedVectors as GroundedVectors
from .grounded_words import GroundedWords as GroundedWords
from .last_blocks import LastBlocks as LastBlocks
from .late_interaction import LateInteraction as LateInteraction
from .linear_probe import LinearProbe as LinearProbe
from .lora import LoRA as LoRA
from .matching import Matching as Matching
from .mm_adapter import MMAdapter as MMAdapter
from .mm_pred import MMPred as MMPred
from .peak_patch import PeakPatch as PeakPatch
from .similarity_map import SimilarityMap as SimilarityMap
from .text_map import TextMap as TextMap
from .word_prompts import WordPrompts as WordPrompts
from .zero_shot import ZeroShot as ZeroShot
