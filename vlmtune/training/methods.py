"""The methods of Cola and EqSim as their papers have them, for a few lines of Python or a YAML.

In: a backbone. Out: an `AdaptationModule` with the parts of a paper's method.
Never: its own step; a config with the same parts trains the same weights to the last bit.

Numbers are the papers', mAP in % as all/unseen/seen and accuracy in %; none is reproduced here. The
project's own variants are configs: configs/experiments/corpora/methods.

    module = MMAdapterModule(OpenClip("ViT-B-32-quickgelu", "openai"))
    Trainer(max_steps=100).fit(module, ShardDataModule([ShardSet("shards")], batch_size=64))

`vlmtune fit --model configs/plugins/modules/mm_adapter.yaml` chooses one on the command line.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
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
from vlmtune.training.module import AdaptationModule

SCALE = 10.0
"""Where a sigmoid starts: at CLIP's temperature, 100, all its gradients would be zero."""
COLA_RATES = {"Flava": 1e-3}
"""Learning rates of Cola, section 11.1, by the class of the backbone: 1e-5 for CLIP and others."""

Parts = tuple[Adapter, list[Objective]]
MakesOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


class PaperModule(AdaptationModule, ABC):
    """An `AdaptationModule` whose parts default to a paper's.

    Args:
        backbone: The pre-trained model.
        adapter: What is trained on it; the method's by default.
        objectives: Losses; the method's by default.
        pairs: Which pairs a joint adapter scores; all of them by default.
        optimizer: Makes the optimizer from parameter groups; the method's by default.
        options: Further arguments of `AdaptationModule`.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter | None = None,
        objectives: list[Objective] | None = None,
        pairs: PairPolicy | None = None,
        optimizer: MakesOptimizer | None = None,
        **options: Any,
    ) -> None:
        default_adapter, default_objectives = self._parts()
        if objectives is None:
            objectives = default_objectives
        super().__init__(
            backbone,
            adapter or default_adapter,
            objectives,
            pairs,
            optimizer or self._papers_optimizer(backbone),
            **options,
        )

    @abstractmethod
    def _parts(self) -> Parts:
        """Returns the method's adapter and objectives."""

    @abstractmethod
    def _papers_optimizer(self, backbone: Backbone) -> MakesOptimizer:
        """Returns the method's optimizer for a backbone."""


class ColaModule(PaperModule):
    """A strategy of Cola (Ray et al. 2023, section 11.1).

    The loss is binary cross-entropy of all images with all queries of a batch, averaged. Section 4
    speaks of a contrastive loss: that is `objectives=[InfoNCE()]`. The weights are trained by AdamW
    (ours) with learning rate 1e-5, over FLAVA 1e-3, and weight decay 1e-4.
    """

    @override
    def _papers_optimizer(self, backbone: Backbone) -> MakesOptimizer:
        rate = COLA_RATES.get(type(backbone).__name__, 1e-5)
        return partial(AdamW, lr=rate, weight_decay=1e-4)


class MMAdapterModule(ColaModule):
    """MM-Adapter: a multimodal transformer over frozen tokens (Cola, section 4).

    Cola, tables 1 and 2a: over CLIP ViT-B/32 GQA 46.83/48.86/44.99, CLEVR 88.21/89.52/77.00, PACO
    18.56/11.47/25.66, two objects 40.95, CREPE 87.02; over FLAVA 48.54/52.55/44.91,
    91.10/86.64/87.39, 19.36/11.16/27.55, 40.47, 74.81. Over FLAVA it replaces the last two
    multimodal layers there: `MMAdapter(replaces=2)`. Most pairs of a batch are easy; `MixedPairs`
    scores fewer.
    """

    @override
    def _parts(self) -> Parts:
        return MMAdapter(), [PairBCE()]


class LinearProbeModule(ColaModule):
    """A linear map of each frozen embedding (Cola, section 11.1, "Linear").

    Cola, tables 1 and 2a: over CLIP GQA 40.44/42.87/38.24, CLEVR 47.96/29.43/46.75, PACO
    14.22/6.75/21.68, two objects 30.47, CREPE 87.35; over FLAVA 37.07/39.96/34.46,
    19.30/17.53/18.52, 11.65/7.90/15.39, 22.38, 55.10.
    """

    @override
    def _parts(self) -> Parts:
        return LinearProbe(initial_scale=SCALE), [PairBCE()]


class PromptTuningModule(ColaModule):
    """Prompt tuning: the towers stay frozen, their inputs are trained.

    The default trains the embeddings of the words in the training queries (Cola, section 11.1,
    "Prompt-tune"). Also for `ContextPrompts` (CoOp) and `DeepPrompts` (MaPLe, VPT).

    Cola, tables 1 and 2a, over CLIP: GQA 37.40/40.69/34.43, CLEVR 29.61/23.17/28.05, PACO
    12.76/5.92/19.61, two objects 27.14, CREPE 80.81.
    """

    @override
    def _parts(self) -> Parts:
        return WordPrompts(learn_scale=True, initial_scale=SCALE), [PairBCE()]


class LateLayerModule(ColaModule):
    """Late fine-tuning: the early layers stay frozen, and their output can be stored.

    The default trains two new layers for each modality on the tokens of the second-last layer
    (Cola, section 11.1, "FT Late"). Also for `LastBlocks`, the backbone's own last layers, as
    section 5.2 says, and `Matching(2)`, FLAVA's own multimodal layers.

    Cola, tables 1 and 2a, over CLIP: GQA 42.19/44.61/40.01, CLEVR 64.06/27.53/67.48, PACO
    15.66/8.74/22.58, two objects 36.19, CREPE 87.14.
    """

    @override
    def _parts(self) -> Parts:
        return FTLate(), [PairBCE()]


class EqSimModule(PaperModule):
    r"""EqSim: a retrieval loss and the equivariance of similarity (Wang et al. 2023).

    Trains all of a dual encoder with $L = L_{\mathrm{InfoNCE}} + \beta L_{\mathrm{EqSim}}$,
    $\beta = 0.5$: v1 on all pairs and v2 on the close ones, the hybrid that the tables report
    (section 5.4). Section 3 has v1 on the distant ones: `[InfoNCE(), EqSim.paper()]`.

    Tables 2 and 3, FIBER trained on Flickr30K, with and without EqSim: Winoground
    text/image/group 51.49/31.49/27.50 and 51.24/26.49/23.00, EqBen 45.32 and 43.40.

    AdamW, learning rate 1e-5 and weight decay 0.01 are ours: the paper states none for CLIP.
    """

    @override
    def _parts(self) -> Parts:
        return FullFineTuning(), [InfoNCE(), EqSim.paper(v1="all")]

    @override
    def _papers_optimizer(self, backbone: Backbone) -> MakesOptimizer:
        return partial(AdamW, lr=1e-5, weight_decay=0.01)
