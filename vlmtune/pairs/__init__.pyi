# The public names of this room: type checkers and `__init__.py` read them here.

from .all_pairs import AllPairs as AllPairs
from .base import NegativePairs as NegativePairs
from .base import PairPolicy as PairPolicy
from .hard_pairs import HardPairs as HardPairs
from .mixed_pairs import MixedPairs as MixedPairs
from .mutual_pairs import MutualPairs as MutualPairs
from .ranking_pairs import RankingPairs as RankingPairs
