import pytest
import torch

from vlmtune.training.validation import Validation
from vlmtune.types import Scores, Targets


def right(scores, targets):
    """Whether each image with a true and a false text is right, one at a time."""
    out = []
    for i, row in enumerate(scores.values.tolist()):
        seen = [j for j in range(len(row)) if scores.computed[i, j]]
        true = [row[j] for j in seen if targets.truth[i, j]]
        false = [row[j] for j in seen if not targets.truth[i, j]]
        if true and false:
            out.append(max(true) > max(false))
    return out


def test_batches_of_any_size_give_the_numbers_of_all_records():
    validation = Validation(["A", "loss"])
    wins, losses = [], []
    for seed, records in enumerate((3, 1, 2)):
        dice = torch.rand(3, 8, 4, generator=torch.Generator().manual_seed(seed))
        truth, computed = dice[0] < 0.4, dice[1] < 0.8
        computed[0] = False  # an image without pairs
        scores = Scores((4 * dice[2]).round(), computed)  # with ties
        targets = Targets(truth, truth, truth)
        wins += right(scores, targets)
        loss = torch.tensor(seed + 0.5)
        losses += [loss.item()] * records
        named = [("A", 3 * loss), ("loss", loss)]
        logged = validation.update(named, scores, targets, records)
    got = {name: metric.compute().item() for name, metric in logged.items()}
    mean = sum(losses) / len(losses)
    accuracy = sum(wins) / len(wins)
    assert 0 < accuracy < 1
    assert got == pytest.approx({"val/A": 3 * mean, "val/loss": mean, "val/accuracy": accuracy})
    truth = torch.tensor([[True, False, False]])
    for hard, other, wanted in ((0.9, 0.1, 0.0), (0.1, 0.9, 0.0), (0.1, 0.2, 1.0), (0.5, 0.1, 0.0)):
        scores = Scores.full(torch.tensor([[0.5, hard, other]]))
        logged = Validation([]).update([], scores, Targets(truth, truth, truth), 1)
        assert logged["val/accuracy"].compute().item() == wanted
