"""Cola's and EqSim's methods by name, for a few lines of Python or a line of a config.

A backbone comes in, an `AdaptationModule` with the parts of a paper's method goes out. It never
has a step of its own: a config with the same parts trains the same weights to the last bit.

    module = MMAdapterModule(OpenClip("ViT-B-32-quickgelu", "openai"))
    Trainer(max_steps=100).fit(module, ShardDataModule([ShardSet("shards")], batch_size=64))

`vlmtune fit --model configs/plugins/modules/mm_adapter.yaml` chooses one on the command line.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import AdamW
from typing_extensions import override

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.ft_late import FTLate
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.word_prompts import WordPrompts
from vlmtune.backbones.base import Backbone
from vlmtune.objectives.base import Objective
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.mixed_pairs import MixedPairs
from vlmtune.training.module import AdaptationModule

SCALE = 10.0
"""Where a sigmoid starts: at CLIP's temperature, 100, all its gradients would be zero."""

Parts = tuple[Adapter, list[Objective], PairPolicy | None]


def paper_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """AdamW with learning rate 1e-5 and weight decay 1e-4 (Cola, section 11.1).

    EqSim states neither for CLIP.
    """
    return AdamW(parameters, lr=1e-5, weight_decay=1e-4)


class PaperModule(AdaptationModule, ABC):
    """An `AdaptationModule` whose parts default to those of a paper.

    Args:
        backbone: The pre-trained model.
        adapter: What is trained on it; the method's by default.
        objectives: Losses; the method's by default.
        pairs: Which pairs a joint adapter scores; the method's by default.
        optimizer: Makes the optimizer from parameter groups.
        options: Further arguments of `AdaptationModule`.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = paper_optimizer,
        **options: Any,
    ) -> None:
        default_adapter, default_objectives, default_pairs = self._parts()
        super().__init__(
            backbone,
            adapter or default_adapter,
            default_objectives if objectives is None else objectives,
            pairs or default_pairs,
            optimizer,
            **options,
        )

    @abstractmethod
    def _parts(self) -> Parts:
        """Returns the method's adapter, objectives and pair policy."""


class MMAdapterModule(PaperModule):
    """MM-Adapter: a multimodal transformer over frozen tokens (Cola, section 4).

    Each image is scored with 2 true texts, 3 hard negatives and 1 other. Scoring all pairs
    (`AllPairs`, the authors' code) spends most of the work on easy pairs.
    """

    @override
    def _parts(self) -> Parts:
        return MMAdapter(), [PairBCE()], MixedPairs(2, 3, 1)


class LinearProbeModule(PaperModule):
    """A linear map of each frozen embedding (Cola, section 11.1, "Linear").

    The loss is balanced, because all pairs of a batch are scored and few of them are true.
    """

    @override
    def _parts(self) -> Parts:
        return LinearProbe(initial_scale=SCALE), [PairBCE(balanced=True)], None


class PromptTuningModule(PaperModule):
    """Prompt tuning: the towers stay frozen, their inputs are trained.

    The default trains the embeddings of the words in the training queries (Cola, section 11.1,
    "Prompt-tune"). Also for `ContextPrompts` (CoOp) and `DeepPrompts` (MaPLe, VPT).
    """

    @override
    def _parts(self) -> Parts:
        adapter = WordPrompts(learn_scale=True, initial_scale=SCALE)
        return adapter, [PairBCE(balanced=True)], None


class LateLayerModule(PaperModule):
    """Late fine-tuning: the early layers stay frozen, and their output can be stored.

    The default trains new layers on the tokens of the second-last layer (Cola, section 11.1, "FT
    Late"). Also for `LastBlocks`, the backbone's own last layers.
    """

    @override
    def _parts(self) -> Parts:
        return FTLate(), [PairBCE(balanced=True)], None


class EqSimModule(PaperModule):
    r"""EqSim: a retrieval loss and the equivariance of similarity (Wang et al. 2023).

    Trains all of a dual encoder with $L = L_{\mathrm{InfoNCE}} + \beta L_{\mathrm{EqSim}}$, the
    paper's section 3 with $\beta = 0.5$.
    """

    @override
    def _parts(self) -> Parts:
        return FullFineTuning(), [InfoNCE(), EqSim.paper()], None
