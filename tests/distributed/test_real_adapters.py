"""Every adapter that trains, under every objective it fits: two ranks train as one process does."""

import copy
import fnmatch
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from pytorch_lightning import Callback
from torch import nn
from torch.distributed.tensor import DTensor

from tests.adapters.families import backbone
from tests.ranks import run_ranks
from tests.runs import QUIET, Batches, plugin_of, quiet_trainer
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.unread_words import UnreadWords
from vlmtune.config import stems
from vlmtune.data import CaptionNegatives, CaptionUnits
from vlmtune.data.collate import collate
from vlmtune.data.datamodule import NoBatches
from vlmtune.errors import UserError
from vlmtune.language.caption_edits import ReverseRelation
from vlmtune.language.rewriting import Rewriter
from vlmtune.objectives import InfoNCE, Objective, OnEmbeddings
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.module import AdaptationModule
from vlmtune.training.needs import check_needs, contrast_of
from vlmtune.types import Group

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

UNTRAINED = {"zero_shot"}  # has no parameter to train
FUSED = {"matching", "fusion_tuning"}  # train a fusion encoder; test_fusion.py trains its towers
CASES = [
    *((name, "open_clip") for name in {*stems("adapters")} - UNTRAINED - FUSED),
    ("full_finetuning", "flava"),
    ("full_finetuning", "siglip"),
    *((name, "flava") for name in FUSED),
    ("compressed with contrast", "open_clip"),
]
GROUPS = {0: 3, 1: 2}  # groups in a batch of each rank
STEPS, ACCUMULATED = 2, 2


def captions() -> Iterator[str]:
    """Distinct captions in the tiny models' words."""
    colours, shapes, sides = ("red", "blue", "green"), ("cube", "sphere", "dog"), ("left", "right")
    for one, a, side, other, b in itertools.product(colours, shapes, sides, colours, shapes):
        yield f"a {one} {a} {side} of the {other} {b}"


def corpora(joint: bool) -> dict[int, list[list[Group]]]:
    """Groups of each rank's batches: two images, their captions, a false one.

    The false one is that of several groups of both ranks, unless the adapter is joint: it scores
    no pair across ranks, so that a caption of two of them is two columns there.
    """
    distinct, shared = captions(), ["dog", "a green metal cube"]
    out: dict[int, list[list[Group]]] = {rank: [] for rank in GROUPS}
    numbers = itertools.count()
    for _ in range(STEPS * ACCUMULATED):
        for rank, count in GROUPS.items():
            out[rank].append([])
            for number in itertools.islice(numbers, count):
                texts = [next(distinct), next(distinct)]
                texts.append(next(distinct) if joint else shared[number % 2])
                out[rank][-1].append(
                    Group(
                        key=f"r{number}",
                        image_ids=(f"{number}-0", f"{number}-1"),
                        text_ids=tuple(texts),
                        texts=tuple(texts),
                        truth=torch.eye(2, 3, dtype=torch.bool),
                        true_ids=tuple(frozenset({text}) for text in texts[:2]),
                        exhaustive=number % 3 == 0,
                    )
                )
    return out


def batch(some: list[Group]):
    """The groups as a batch, with units of the captions; an image's pixels follow from its id."""
    made = collate(some)
    units = CaptionUnits(CaptionNegatives(Rewriter([ReverseRelation()])))
    seeds = (int(name.replace("-", "")) for name in made.image_ids)
    chances = (torch.Generator().manual_seed(seed) for seed in seeds)
    pixels = [torch.randn(3, 32, 32, generator=g) for g in chances]
    return replace(made, pixels=torch.stack(pixels), phrases=collate(units.groups(some)))


class OwnRank(PairPolicy):
    """The pairs within a rank: what a process with both batches scores in their place."""

    def __call__(self, targets, generator):
        images, texts = 2 * GROUPS[0], 3 * GROUPS[0]
        pairs = torch.zeros_like(targets.truth)
        pairs[:images, :texts] = pairs[images:, texts:] = True
        return pairs


def adapter_of(case) -> Adapter:
    """The adapter of a plug-in; "with" names an option of it that is true."""
    stem, _, option = case.partition(" with ")
    return plugin_of("adapters", stem, Adapter, **dict.fromkeys(filter(None, [option]), True))


def fitting(adapter, model, pattern):
    """All objectives that the adapter can be trained with, but for those that read a teacher."""
    # Contrastive scores need an objective that reads them, beside any other.
    beside = [OnEmbeddings(InfoNCE())] if contrast_of(adapter) else []
    for name in fnmatch.filter(stems("objectives"), pattern):
        objective = plugin_of("objectives", name, Objective)
        if "teacher" in objective.needs:
            continue
        try:
            check_needs([objective, *beside], adapter, model)
            yield objective
        except UserError:
            continue


def whole(tensor):
    """A copy of a tensor, gathered if the strategy holds it in parts."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


class Gradients(Callback):
    """Notes the gradients of each step, and the losses of each batch."""

    def __init__(self):
        self.gradients, self.losses = [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        named = pl_module.named_parameters()
        self.gradients.append({n: whole(p.grad) for n, p in named if p.grad is not None})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        logged = trainer.callback_metrics.items()  # diagnostics are of a rank's own batch
        losses = {n: float(v) for n, v in logged if n.startswith("train/") and n.count("/") == 1}
        self.losses.append(losses)


def momentum(parameters):
    """Weights move by the size of their gradients; AdamW would make large steps of rounding."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def trained(rank, adapter, model, corpus, folder, pairs=None, pattern="*", **options):
    """Losses, gradients and the weights after steps on accumulated batches."""
    adapter = adapter_of(adapter)
    objectives = list(fitting(adapter, model, pattern))
    torch.manual_seed(1)
    made = AdaptationModule(model, adapter, objectives, pairs, momentum, warmup=0.0)
    for part in made.modules():  # dropout and hidden words differ between ranks, by design
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
        elif isinstance(part, UnreadWords):
            part.rate = 0.0
    start = {n: p.detach().clone() for n, p in made.named_parameters() if p.requires_grad}
    notes = Gradients()
    trainer = quiet_trainer(
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        default_root_dir=folder,
        callbacks=[notes],
        **options,
    )
    trainer.fit(made, Batches([batch(groups) for groups in corpus[rank]]), NoBatches())
    weights = {n: whole(p) for n, p in made.named_parameters() if p.requires_grad}
    assert len(notes.gradients) == STEPS
    assert len(notes.losses) == STEPS * ACCUMULATED
    assert any(not value.equal(start[name]) for name, value in weights.items())
    return [type(x).__name__ for x in objectives], notes.losses, notes.gradients, weights


FAST = {("linear_probe", "open_clip"), ("mm_adapter", "open_clip")}


def marked(case):
    return pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow])


@pytest.mark.parametrize(("adapter", "family"), [marked(case) for case in sorted(CASES)])
def test_two_ranks_train_as_one_process(adapter, family, tmp_path):
    model = backbone(family)
    joint = adapter_of(adapter).joint
    corpus = corpora(joint)
    whole = [[[*itertools.chain(*parts)] for parts in zip(*corpus.values(), strict=True)]]
    pairs = OwnRank() if joint else None
    one = trained(0, adapter, copy.deepcopy(model), whole, tmp_path, pairs, devices=1)
    names, losses, gradients, weights = one
    assert {"InfoNCE", "PairBCE", "HardNegative"} <= {*names}

    arguments = adapter, model, corpus, tmp_path
    for rank in run_ranks(2, tmp_path / "ranks", distributed, *arguments):
        assert rank[0] == names
        assert_close(rank[1:], (losses, gradients, weights))


def assert_close(rank, one, relative=1e-4, absolute=1e-6):
    """Losses, gradients and weights of a rank are those of one process, but for rounding."""
    for numbers, wanted in zip(rank[0], one[0], strict=True):
        assert numbers == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    for mine, theirs in zip([*rank[1], rank[2]], [*one[1], one[2]], strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            close = relative * float(value.abs().max()) + absolute
            torch.testing.assert_close(mine[name], value, rtol=0, atol=close, msg=name)


def distributed(rank, *arguments):
    return trained(rank, *arguments, devices=2, strategy="ddp")
