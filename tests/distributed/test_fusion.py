"""Both scores of a fusion encoder in one run: two ranks train as one process does."""

import itertools

import pytest
import torch
from torch import nn
from transformers.utils import logging

from tests.adapters.test_fusion_tuning import folders
from tests.adapters.test_matching import KINDS
from tests.distributed.test_real_adapters import (
    GROUPS,
    STEPS,
    Gradients,
    assert_close,
    batch,
    corpora,
    momentum,
)
from tests.ranks import run_ranks
from tests.runs import QUIET, Batches, quiet_trainer
from vlmtune.adapters.fusion_tuning import FusionTuning
from vlmtune.data.datamodule import NoBatches
from vlmtune.objectives import ITM, EqSim, InfoNCE, OnEmbeddings
from vlmtune.pairs import PairPolicy, RankingPairs
from vlmtune.training.module import AdaptationModule

__all__ = ["folders"]  # a fixture
pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

# The kind of backbone, whether its towers are trained, and whether it has embeddings.
CASES = [
    ("blip", True, True),
    ("bridgetower", False, True),
    ("flava", True, True),
    ("vilt", True, False),
    ("vilt", False, False),
]


class Hardest(PairPolicy):
    """Pairs within a group, and the hardest false text of the rank for each image."""

    needs_reference = True

    def __call__(self, targets, generator, reference=None):
        images, texts = 2 * GROUPS[0], 3 * GROUPS[0]
        assert reference is not None
        of_rank = torch.ones_like(targets.truth)
        if len(of_rank) > images:  # one process with the batches of both ranks
            of_rank[:images, texts:] = of_rank[images:, :texts] = False
        false = reference.masked_fill(targets.same_group | ~of_rank, -torch.inf)
        pairs = targets.same_group.clone()
        pairs[torch.arange(len(pairs)), false.argmax(dim=1)] = True
        return pairs


def objectives(contrast):
    """ITM with EqSim and, if there are embeddings, ITC with EqSim; no margin hides a term."""
    matching = [ITM(), EqSim(k=2, normalise="sigmoid", alpha1=0.0, alpha2=0.0)]
    if not contrast:
        return matching
    eqsim = EqSim(k=2, normalise="none", alpha1=0.0, alpha2=0.0)
    return [OnEmbeddings(InfoNCE()), *matching, OnEmbeddings(eqsim)]


def trained(rank, folder, case, corpus, root, pairs=None, **options):
    """Losses, gradients and weights of a few steps."""
    kind, towers, contrast = case
    logging.disable_progress_bar()
    adapter = FusionTuning(towers=towers, contrast=contrast, top=5.0)
    chosen = pairs or (Hardest() if contrast else None)
    torch.manual_seed(1)
    made = AdaptationModule(
        KINDS[kind][0](str(folder)), adapter, objectives(contrast), chosen, momentum, warmup=0.0
    )
    for part in made.modules():  # dropout differs between ranks, by design
        if isinstance(part, nn.Dropout) and pairs is None:
            part.p = 0.0
    notes = Gradients()
    trainer = quiet_trainer(max_steps=STEPS, default_root_dir=root, callbacks=[notes], **options)
    trainer.fit(made, Batches([batch(groups) for groups in corpus[rank]]), NoBatches())
    weights = {n: p.detach() for n, p in made.named_parameters() if p.requires_grad}
    return notes.losses, notes.gradients, weights


def distributed(rank, *arguments):
    return trained(rank, *arguments, devices=2, strategy="ddp")


class OfRank(Hardest):
    """All pairs of a rank, for a model without embeddings."""

    needs_reference = False

    def __call__(self, targets, generator, reference=None):
        pairs = torch.zeros_like(targets.truth)
        images, texts = 2 * GROUPS[0], 3 * GROUPS[0]
        pairs[:images, :texts] = pairs[images:, texts:] = True
        return pairs


def marked(case):
    fast = case in (("blip", True, True), ("vilt", False, False))
    return pytest.param(case, id=str(case), marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_two_ranks_train_as_one_process(case, folders, tmp_path):
    corpus = corpora(joint=True)
    whole = [[[*itertools.chain(*parts)] for parts in zip(*corpus.values(), strict=True)]]
    pairs = None if case[2] else OfRank()
    arguments = folders[case[0]], case
    one = trained(0, *arguments, whole, tmp_path, pairs, devices=1)
    losses, gradients, weights = one
    assert all(gradient.keys() == weights.keys() for gradient in gradients)
    assert {len(one) for one in losses} == {5 if case[2] else 3}
    assert all(value > 0 for one in losses for value in one.values())
    for rank in run_ranks(2, tmp_path / "ranks", distributed, *arguments, corpus, tmp_path):
        assert_close(rank, one, 1e-3, 1e-5)


def test_two_ranks_keep_one_model_where_each_draws_its_pairs(folders, tmp_path):
    case, corpus = ("blip", True, True), corpora(joint=True)
    pairs = RankingPairs(2, hard=1)
    one, other = run_ranks(2, tmp_path, distributed, folders["blip"], case, corpus, tmp_path, pairs)
    for name, value in one[2].items():
        torch.testing.assert_close(other[2][name], value, rtol=0, atol=0)
