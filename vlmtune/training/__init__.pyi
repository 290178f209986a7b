# The public names of this room: type checkers and `__init__.py` read them here.

from .benchmark_callback import BenchmarkCallback as BenchmarkCallback
from .compile_towers import CompileTowers as CompileTowers
from .ema import EMA as EMA
from .fsdp2 import FSDP2 as FSDP2
from .methods import EqSimModule as EqSimModule
from .methods import LateLayerModule as LateLayerModule
from .methods import LinearProbeModule as LinearProbeModule
from .methods import MMAdapterModule as MMAdapterModule
from .methods import PaperModule as PaperModule
from .methods import PromptTuningModule as PromptTuningModule
from .module import AdaptationModule as AdaptationModule
from .muon import Muon as Muon
from .retention_budget import RetentionBudget as RetentionBudget
from .run_monitor import RunMonitor as RunMonitor
from .wandb_runs import WandbRuns as WandbRuns
