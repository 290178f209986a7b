from dataclasses import replace

import torch

from tests.scored import random_targets, random_values, scored
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives import CyClip, EqSim, InfoNCE, OnEmbeddings
from vlmtune.types import ScoreShard


def shard(seed):
    scores, targets = scored(random_values(seed)), random_targets(0)
    return ScoreShard(scores, targets, scores, targets)


def test_it_reads_the_contrastive_scores_alone_and_is_named_by_what_it_holds():
    matching, contrast = shard(1), shard(2)
    both = replace(matching, contrast=contrast)
    alone = ProcessGroup(alone=True)
    for inner in (InfoNCE(), CyClip(), EqSim(close="topk", k=2)):
        wrapped = OnEmbeddings(inner)
        got = wrapped.shard_loss(both, alone)
        torch.testing.assert_close(got, inner.shard_loss(contrast, alone))
        assert not got.isclose(inner.shard_loss(matching, alone))
        assert wrapped.scores_of(both) is contrast
        assert wrapped.scores_of(matching) is matching  # of a dual adapter
    assert OnEmbeddings(EqSim(0.2)).weight == 0.2
    assert OnEmbeddings(EqSim(0.2), 0.7).weight == 0.7
    assert OnEmbeddings(InfoNCE()).name == "InfoNCEOnEmbeddings"
    assert OnEmbeddings(EqSim()).regulariser
    assert not OnEmbeddings(InfoNCE()).regulariser
    assert OnEmbeddings(EqSim(ranked_by="reference")).needs == {"contrast", "reference"}
    assert OnEmbeddings(CyClip()).needs == {"contrast"}
