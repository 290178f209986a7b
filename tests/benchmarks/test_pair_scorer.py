import torch

from tests.refusals import refused
from vlmtune.benchmarks.pair_scorer import check_scores


def test_scores_that_are_not_finite_are_counted_in_all_parts():
    scores = torch.zeros(600, 2)
    check_scores(scores, (600, 2), "coco")
    scores[0, 0] = torch.nan
    scores[599, 1] = torch.inf
    with refused("expected finite scores for coco, 2 are NaN or infinite"):
        check_scores(scores, (600, 2), "coco")
