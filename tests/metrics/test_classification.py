import pytest
import torch

from vlmtune.errors import UserError
from vlmtune.metrics.classification import f1_at_positives


def naive_f1(scores, positives):
    count = sum(positives)
    predicted = [sum(y >= x for y in scores) <= count for x in scores]
    hits = sum(p and t for p, t in zip(predicted, positives, strict=True))
    precision = hits / sum(predicted) if any(predicted) else 0.0
    recall = hits / count
    return 0.0 if hits == 0 else 2 * precision * recall / (precision + recall)


def test_agrees_with_precision_and_recall():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        scores = torch.randint(8, (12,), generator=generator).float()
        positives = torch.rand(12, generator=generator) < 0.4
        if positives.any():
            expected = naive_f1(scores.tolist(), positives.tolist())
            assert f1_at_positives(scores, positives) == pytest.approx(expected)


def test_ends():
    positives = torch.tensor([True, False, False])
    assert f1_at_positives(positives.float(), positives) == 1.0
    assert f1_at_positives(-positives.float(), positives) == 0.0
    assert f1_at_positives(torch.zeros(3), positives) == 0.0


def test_no_positive_raises():
    with pytest.raises(UserError, match="at least one true image"):
        f1_at_positives(torch.rand(3), torch.zeros(3).bool())
