import torch

from tests.refusals import refused
from vlmtune.benchmarks.pair_scorer import check_scores


def test_scores_that_are_not_finite_are_counted_by_parts(monkeypatch):
    sizes = []
    isfinite = torch.isfinite

    def noted(values):
        sizes.append(len(values))
        return isfinite(values)

    monkeypatch.setattr(torch, "isfinite", noted)
    scores = torch.zeros(600, 2)
    check_scores(scores, (600, 2), "coco")
    # A mask of all scores takes as much memory as they do.
    assert sizes == [256, 256, 88]
    scores[0, 0] = torch.nan
    scores[599, 1] = torch.inf
    with refused("expected finite scores for coco, 2 are NaN or infinite"):
        check_scores(scores, (600, 2), "coco")
