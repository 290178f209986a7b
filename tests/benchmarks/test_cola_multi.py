import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import check, oracle
from vlmtune.benchmarks.cola_multi import ColaMulti

SHARED = Path(__file__).parents[2].parent / "shared"
REAL = SHARED / "data/cola/COLA_multiobjects_matching_benchmark.json"


def test_the_image_score_and_not_the_text_score_is_the_accuracy(tmp_path):
    # Captions prefer their image, images do not prefer their caption: column offsets do that.
    values = {"red cup on blue box": 9.0, "old man by young tree": 9.0}
    benchmark = ColaMulti.fixture(tmp_path)
    truth = benchmark.items.truth.double()
    texts = [benchmark.items.texts[j] for j in benchmark.items.pairs[:, 1]]
    offsets = torch.tensor([values.get(text, 0.0) for text in texts])
    result = benchmark.run(lambda images, texts, pairs=None: truth + offsets)
    expected = {"text_accuracy": (0.0, 3, 0.25), "accuracy": (1.0, 3, 0.25)}
    expected |= {"group_accuracy": (0.0, 3, 1 / 6), "group_match": (1.0, 3, 0.5)}
    check(result, expected)
    assert result.metrics.keys() == expected.keys()


def test_items_are_grouped_by_the_words_they_state(tmp_path):
    fixture = ColaMulti.fixture(tmp_path)
    benchmark = ColaMulti(fixture.path, fixture.images, words=["cup", "box", "man", "tree"])
    assert benchmark.items.groups == ["box and cup", "box and cup", "man and tree"]
    metrics = benchmark.run(oracle(benchmark)).metrics
    assert metrics["accuracy/box and cup"].n == 2
    assert metrics["accuracy/man and tree"].value == 1.0


@pytest.mark.skipif(not REAL.is_file(), reason=f"the released annotation file is not at {REAL}")
def test_released_file(tmp_path):
    rows = json.loads(REAL.read_text())
    for row in rows:
        touch(tmp_path, *(address.rpartition("/")[2] for address in row[::2]))
    benchmark = ColaMulti(str(REAL), str(tmp_path))
    benchmark.load()
    assert (len(rows), len(benchmark.items.images), len(benchmark.items.texts)) == (210, 218, 294)
    pairs = {(x, y) for row in rows for x in row[::2] for y in row[1::2]}
    assert len(benchmark.items.pairs) == len(pairs)
    result = benchmark.run(oracle(benchmark))
    assert (result.metrics["accuracy"].n, result.metrics["accuracy"].value) == (210, 1.0)
