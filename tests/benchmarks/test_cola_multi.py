import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import check, oracle
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.benchmarks.files import write_json

SHARED = Path(__file__).parents[2].parent / "shared"
REAL = SHARED / "data/cola/COLA_multiobjects_matching_benchmark.json"


def test_many_images_of_two_pairs_of_captions_say_little(tmp_path):
    captions = [("red cup on box", "red box on cup"), ("old man", "young man")]
    rows = []
    touch(tmp_path, *(f"{k}.png" for k in range(48)))
    for i in range(24):
        first, second = captions[i % 2][:: 1 - 2 * (i % 3 == 0)]  # in either order
        rows.append([f"{2 * i}.png", first, f"{2 * i + 1}.png", second])
    benchmark = ColaMulti(write_json(tmp_path / "pairs.json", rows), str(tmp_path))
    result = benchmark.evaluate(torch.randn(96, generator=torch.Generator().manual_seed(0)))
    assert len(set(result.clusters)) == 24
    assert len(set(result.caption_sets)) == 2
    metric = result.metrics["accuracy"]
    assert (metric.n, metric.clusters) == (24, 2)
    assert metric.high - metric.low > 0.6  # of 24 items: 0.4 at most


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
