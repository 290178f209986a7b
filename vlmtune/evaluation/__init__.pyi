# The public names of this room: type checkers and `__init__.py` read them here.

from .reading import Reading as Reading
from .reading import read_words as read_words
from .scorer import Scorer as Scorer
from .suite import NotRun as NotRun
from .suite import SuiteResult as SuiteResult
from .suite import run_suite as run_suite
from .text_only import ImageAveraged as ImageAveraged
from .text_only import TextOnlyScore as TextOnlyScore
