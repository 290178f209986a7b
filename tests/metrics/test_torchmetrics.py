import pickle

import pytest
import torch
from torchmetrics import MetricCollection

from tests.ranks import run_ranks
from vlmtune.metrics.average_precision import class_average_precision
from vlmtune.metrics.multiple_choice import choice_credit
from vlmtune.metrics.paired_accuracy import image_correct, text_correct
from vlmtune.metrics.retrieval import bank_ranks
from vlmtune.metrics.torchmetrics import (
    ColaMeanAveragePrecision,
    MultipleChoiceAccuracy,
    PairedAccuracy,
    RetrievalRecallAtK,
)

ITEMS = 24


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


CHOICES = (random(ITEMS, 4) * 5).round()  # with ties
SQUARES = random(ITEMS, 2, 2)
CLASSES = random(ITEMS, 6), random(ITEMS, 6, seed=1) < 0.3, random(ITEMS, 6, seed=2) < 0.8
IDS = torch.arange(ITEMS)
BANK = random(ITEMS, 5), random(2 * ITEMS, 5, seed=1), IDS, IDS.repeat_interleave(2)


def mean_ap(treatment):
    values = class_average_precision(*CLASSES, treatment).values
    return float(values[~values.isnan()].mean())


def recall(k, query):
    images, texts = (torch.nn.functional.normalize(x, dim=1) for x in BANK[:2])
    true = torch.stack([BANK[3], torch.arange(2 * ITEMS)], dim=1)
    ranks = bank_ranks(images @ texts.T, true)[query == "text"]
    return float((ranks <= k).double().mean())


CASES = {
    "choice": (MultipleChoiceAccuracy(), (CHOICES,), float(choice_credit(CHOICES).mean())),
    "choice, random ties": (
        MultipleChoiceAccuracy(ties="random"),
        (CHOICES,),
        float(choice_credit(CHOICES, "random").mean()),
    ),
    "text": (PairedAccuracy("text"), (SQUARES,), float(text_correct(SQUARES).double().mean())),
    "image": (PairedAccuracy("image"), (SQUARES,), float(image_correct(SQUARES).double().mean())),
    "group": (
        PairedAccuracy(),
        (SQUARES,),
        float((text_correct(SQUARES) & image_correct(SQUARES)).double().mean()),
    ),
    "mAP": (ColaMeanAveragePrecision(), CLASSES, mean_ap("strict")),
    "mAP, reference": (ColaMeanAveragePrecision("reference"), CLASSES, mean_ap("reference")),
    "image to text": (RetrievalRecallAtK(), BANK, recall(1, "image")),
    "text to image": (RetrievalRecallAtK(5, "text"), BANK, recall(5, "text")),
}


def part(inputs, start, stop, step):
    """Items `start` to `stop` of every input; inputs with two rows an item give both."""
    rows = torch.arange(start, stop, step)
    places = [rows[:, None] * (len(x) // ITEMS) + torch.arange(len(x) // ITEMS) for x in inputs]
    return [x[place.flatten()] for x, place in zip(inputs, places, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_batches_give_the_value_of_the_function(case):
    metric, inputs, expected = CASES[case]
    assert 0 < expected < 1
    for _ in range(2):
        for start in range(0, ITEMS, 5):
            metric(*part(inputs, start, min(start + 5, ITEMS), 1))
        assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)
        metric.reset()
    pickle.loads(pickle.dumps(metric))


@pytest.mark.parametrize(
    ("kind", "options", "sure", "inputs"),
    [
        (MultipleChoiceAccuracy, ("wrong", "right", "random"), torch.tensor([[1.0, 0]]), CHOICES),
        (PairedAccuracy, ("text", "image", "group"), torch.eye(2)[None], SQUARES),
    ],
)
def test_metrics_of_a_collection_may_agree_on_the_first_batch(kind, options, sure, inputs):
    together = MetricCollection({option: kind(option) for option in options})
    for batch in (sure, inputs):
        together.update(batch)
    for option, found in together.compute().items():
        alone = kind(option)
        alone.update(sure)
        alone.update(inputs)
        assert found == alone.compute()
    assert len(set(map(float, together.compute().values()))) == 3


def on_a_rank(rank):
    values = {}
    for case, (metric, inputs, _) in CASES.items():
        for start in (rank, rank + 12):
            metric.update(*part(inputs, start, start + 12, 2))
        values[case] = float(metric.compute())
    return values


def test_two_ranks_give_the_value_of_one(tmp_path):
    expected = {case: pytest.approx(value, abs=1e-6) for case, (_, _, value) in CASES.items()}
    assert run_ranks(2, tmp_path, on_a_rank) == [expected, expected]
