import pytest
import torch

from vlmtune.benchmarks.table_classification import TableClassification
from vlmtune.benchmarks.table_files import fixture_table
from vlmtune.errors import UserError

CAPTIONS = {"a": "a photo of a dog", "b": "a photo of a cat", "c": "a photo of a dog"}


def benchmark(folder, rows):
    path = fixture_table(folder, ("image", "caption", "background"), rows)
    return TableClassification(path, columns={"group": "background"})


def test_every_caption_is_a_candidate(tmp_path):
    rows = [(f"{n}.png", text, "in" if n < "c" else "out") for n, text in CAPTIONS.items()]
    bench = benchmark(tmp_path, rows)
    order = bench.items.texts
    assert sorted(order) == ["a photo of a cat", "a photo of a dog"]
    right = {"a": 0.9, "b": 0.2, "c": 0.9}  # b is taken for a dog
    scores = torch.tensor(
        [[right[n] if CAPTIONS[n] == text else 0.5 for text in order] for n in CAPTIONS]
    )
    result = bench.run(lambda images, texts, pairs: scores)
    values = {name: metric.value for name, metric in result.metrics.items()}
    assert values["accuracy"] == pytest.approx(2 / 3)
    assert values["accuracy/in"] == pytest.approx(1 / 2)
    assert values["accuracy/out"] == 1.0
    assert result.metrics["accuracy"].chance == pytest.approx(1 / 2)


def test_an_image_of_two_classes_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected one caption in line 2"):
        _ = benchmark(tmp_path, [("a.png", '["a dog", "a cat"]', "x")]).items
