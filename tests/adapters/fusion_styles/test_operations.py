"""What the benchmark says of the number of operations is what torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scripts.bench import joint_scoring
from scripts.bench.joint_scoring import Job, Scorer, multiplications, naive_scores


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """The same numbers of tokens at an eighth of the widths: other terms weigh more."""
    monkeypatch.setattr(joint_scoring, "WIDTH", 64)
    monkeypatch.setattr(joint_scoring, "IMAGE_WIDTH", 64)
    monkeypatch.setattr(joint_scoring.ViTB32, "text_width", 64)
    monkeypatch.setattr(joint_scoring.ViTB32, "image_width", 64)


@pytest.mark.parametrize("style", joint_scoring.STYLES)
def test_multiplications_are_those_torch_counts(style):
    job = Job(False, style, images=4, texts=3, rounds=1, pairs=6, device="cpu")
    scorer = Scorer(job)
    counts = []
    for score in (
        lambda: naive_scores(scorer.adapter, scorer.image, scorer.text, job.pairs),
        lambda: scorer.adapter(scorer.image, scorer.text),
    ):
        # With gradients, as torch's own layers otherwise run in a kernel it does not look into.
        with FlopCounterMode(display=False) as counter:
            score()
        project = 2 * 4 * 49 * 64 * 64  # in both forms
        counts.append(counter.get_total_flops() - project)
    assert counts[0] / counts[1] == pytest.approx(multiplications(job), rel=0.02)


def test_the_required_speed_is_within_reach(monkeypatch):
    monkeypatch.setattr(joint_scoring, "WIDTH", 512)
    many = Job(False, "Mdetr", images=256, texts=256, rounds=1, pairs=6, device="cpu")
    assert 3.05 < multiplications(many) < 3.15


def test_both_forms_agree_on_the_benchmarks_inputs():
    naive, ours = (
        Scorer(Job(naive, "Mdetr", 4, 3, rounds=1, pairs=6, device="cpu")).round().scores
        for naive in (True, False)
    )
    assert ours.std() > 0
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)
