import json
from pathlib import Path

import pytest

from tests.benchmarks.models import scorer
from vlmtune.benchmarks.winoground import Winoground


def by_stem(look):
    return scorer(lambda image, text: look(image.path.stem, text))


def test_accuracy_by_tag(tmp_path):
    made = Winoground.fixture(tmp_path)
    rows = [json.loads(line) for line in Path(made.path).read_text().splitlines()]
    right = {(row[f"image_{i}"], row[f"caption_{i}"]) for row in rows[:2] for i in (0, 1)}
    result = made.run(by_stem(lambda name, text: float((name, text) in right)))
    values = {key: metric.value for key, metric in result.metrics.items()}
    assert values["group_accuracy"] == pytest.approx(2 / 3)
    assert values["group_accuracy/Object"] == values["group_accuracy/Relation"] == 1.0
    assert values["group_accuracy/Both"] == 0.0
    assert values["group_accuracy/Series"] == 0.5
    assert values["group_accuracy/Symbolic"] == 0.0
    assert values["image_accuracy/1 main predicate"] == 1.0
    assert values["text_accuracy/2 main predicates"] == 0.5
    assert result.metrics["group_accuracy/Series"].n == 2
    assert result.outcomes == (1.0, 1.0, 0.0)


def test_files_as_others_write_them(tmp_path):
    made = Winoground.fixture(tmp_path)
    rows = [json.loads(line) for line in Path(made.path).read_text().splitlines()]
    bare = [{key: row[key] for key in row if key[:5] in ("image", "capti")} for row in rows]
    Path(made.path).write_text("\n\n".join(map(json.dumps, bare)))
    result = Winoground(made.path, made.images).run(scorer(lambda *_: 0.0))
    assert list(result.metrics) == [
        "text_accuracy",
        "image_accuracy",
        "group_accuracy",
        "group_match",
    ]
