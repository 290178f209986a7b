"""The straightforward form of the benchmark scores alike, and torch counts the stated bound."""

import pytest
import torch

from scripts.bench.joint_scoring import STYLES, Job, Scorer


def both(style: str, images: int, texts: int) -> list[Scorer]:
    return [Scorer(Job(naive, style, images, texts, pairs=8)) for naive in (True, False)]


@pytest.mark.parametrize("style", STYLES)
def test_both_forms_agree_on_the_benchmarks_inputs(style):
    naive, ours = (scorer.scores() for scorer in both(style, 3, 2))
    assert ours.std() > 0
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)


def test_the_required_speed_is_within_reach():
    naive, ours = (scorer.operations() for scorer in both("Mdetr", 8, 8))
    assert 2.9 < naive / ours < 3.15
