"""Cola's and EqSim's methods for a few lines of Python: `AdaptationModule` with their defaults.

Each class fixes what is trained and with which loss, and has no step of its own: what it does, a
config of `AdaptationModule` with the same parts does to the last bit. Three more lines make it a
run: a `ShardDataModule`, a `Trainer` of Lightning, and `trainer.fit(module, data)`.

Defaults are those of configs/experiments/cola, but for the pairs of the MM-Adapter. The learning
rate 1e-5 and the weight decay 1e-4 are Cola's (Ray et al. 2023, section 11.1); EqSim (Wang et al.
2023) states none for CLIP.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import AdamW

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.context_prompts import ContextPrompts
from vlmtune.adapters.deep_prompts import DeepPrompts
from vlmtune.adapters.ft_late import FTLate
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.word_prompts import WordPrompts
from vlmtune.backbones.base import Backbone
from vlmtune.objectives.base import Objective
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.chosen_pairs import ChosenPairs
from vlmtune.training.inputs import StoreDType
from vlmtune.training.module import AdaptationModule

SCALE = 10.0
"""Where a sigmoid starts: at the temperature of CLIP, 100, all its gradients would be zero."""


def paper_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """AdamW with learning rate 1e-5 and weight decay 1e-4 (Cola, section 11.1)."""
    return AdamW(parameters, lr=1e-5, weight_decay=1e-4)


class MMAdapterModule(AdaptationModule):
    """MM-Adapter: a multimodal transformer over frozen tokens (Cola, section 4).

    Pairs are chosen, 2 true ones, 3 hard negatives and 1 other for each image, as scoring all of
    them (`AllPairs`, what the authors' code does) spends most of the work on pairs that are easy.

    Args:
        backbone: The pre-trained model.
        adapter: None for `MMAdapter()`.
        objectives: Losses; None for `PairBCE()`.
        pairs: Which pairs are scored; None for `ChosenPairs(2, 3, 1)`.
        optimizer: Makes the optimizer from parameter groups; `paper_optimizer` by default.
        warmup: As of `AdaptationModule`, like all that follow.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: MMAdapter | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = paper_optimizer,
        warmup: float = 0.05,
        final_lr: float = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone,
            adapter or MMAdapter(),
            [PairBCE()] if objectives is None else objectives,
            pairs or ChosenPairs(2, 3, 1),
            optimizer,
            warmup,
            final_lr,
            store,
            store_dtype,
            seed,
            chunk,
        )


class LinearProbeModule(AdaptationModule):
    """A linear map of either frozen embedding (Cola, section 11.1, "Linear").

    As all pairs of a batch are scored, few of them true, the loss is balanced.

    Args:
        backbone: The pre-trained model.
        adapter: None for `LinearProbe(initial_scale=10.0)`.
        objectives: Losses; None for `PairBCE(balanced=True)`.
        pairs: Which pairs a joint adapter is trained on; these adapters score all of a batch.
        optimizer: Makes the optimizer from parameter groups; `paper_optimizer` by default.
        warmup: As of `AdaptationModule`, like all that follow.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: LinearProbe | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = paper_optimizer,
        warmup: float = 0.05,
        final_lr: float = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone,
            adapter or LinearProbe(initial_scale=SCALE),
            [PairBCE(balanced=True)] if objectives is None else objectives,
            pairs,
            optimizer,
            warmup,
            final_lr,
            store,
            store_dtype,
            seed,
            chunk,
        )


class PromptTuningModule(AdaptationModule):
    """Prompt tuning: the towers stay frozen, what they read is trained.

    By default the embeddings of the words in the training queries (Cola, section 11.1,
    "Prompt-tune"). Images come from the feature store, where there is one.

    Args:
        backbone: The pre-trained model.
        adapter: `ContextPrompts` (CoOp), `DeepPrompts` (MaPLe, VPT) or `WordPrompts`; None for
            the last, of all words, with the scale trained from 10.
        objectives: Losses; None for `PairBCE(balanced=True)`.
        pairs: Which pairs a joint adapter is trained on; these adapters score all of a batch.
        optimizer: Makes the optimizer from parameter groups; `paper_optimizer` by default.
        warmup: As of `AdaptationModule`, like all that follow.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: WordPrompts | ContextPrompts | DeepPrompts | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = paper_optimizer,
        warmup: float = 0.05,
        final_lr: float = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone,
            adapter or WordPrompts(learn_scale=True, initial_scale=SCALE),
            [PairBCE(balanced=True)] if objectives is None else objectives,
            pairs,
            optimizer,
            warmup,
            final_lr,
            store,
            store_dtype,
            seed,
            chunk,
        )


class LateLayerModule(AdaptationModule):
    """Late fine-tuning: what comes before the last layers stays frozen and may be stored.

    By default new layers on the tokens of the second-last layer (Cola, section 11.1, "FT Late").

    Args:
        backbone: The pre-trained model.
        adapter: `LastBlocks` for the backbone's own last blocks; None for `FTLate()`.
        objectives: Losses; None for `PairBCE(balanced=True)`.
        pairs: Which pairs a joint adapter is trained on; these adapters score all of a batch.
        optimizer: Makes the optimizer from parameter groups; `paper_optimizer` by default.
        warmup: As of `AdaptationModule`, like all that follow.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: FTLate | LastBlocks | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = paper_optimizer,
        warmup: float = 0.05,
        final_lr: float = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone,
            adapter or FTLate(),
            [PairBCE(balanced=True)] if objectives is None else objectives,
            pairs,
            optimizer,
            warmup,
            final_lr,
            store,
            store_dtype,
            seed,
            chunk,
        )


class EqSimModule(AdaptationModule):
    r"""EqSim: a retrieval loss and the equivariance of similarity (Wang et al. 2023).

    Trains all of a dual encoder with $L = L_{\mathrm{InfoNCE}} + \beta L_{\mathrm{EqSim}}$, the
    paper's section 3 with $\beta = 0.5$.

    Args:
        backbone: The pre-trained model.
        adapter: None for `FullFineTuning()`.
        objectives: Losses; None for `[InfoNCE(), EqSim.paper()]`.
        pairs: Which pairs a joint adapter is trained on; a dual one scores all of a batch.
        optimizer: Makes the optimizer from parameter groups; `paper_optimizer` by default.
        warmup: As of `AdaptationModule`, like all that follow.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = paper_optimizer,
        warmup: float = 0.05,
        final_lr: float = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone,
            adapter or FullFineTuning(),
            [InfoNCE(), EqSim.paper()] if objectives is None else objectives,
            pairs,
            optimizer,
            warmup,
            final_lr,
            store,
            store_dtype,
            seed,
            chunk,
        )
