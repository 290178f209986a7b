from dataclasses import replace

import pytest

from tests.refusals import refused
from vlmtune.report.correlations import correlation_table, correlations
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Result


@pytest.fixture
def models(make_run):
    """Five models: yaw goes with ImageNet's accuracy, light against it, size has no relation."""

    def make(i, name, yaw, light, size, n=50):
        values = {"accuracy": 0.5, "accuracy/yaw": yaw, "accuracy/light": light,
                  "accuracy/size": size}  # fmt: skip
        metrics = {key: MetricValue(value, n) for key, value in values.items()}
        common = {"accuracy": MetricValue(0.1 * i, 100)}
        results = (
            Result("zero_shot", "1", "accuracy", common, (), ""),
            Result("pug_imagenet", "1", "accuracy", metrics, (), ""),
        )
        return replace(make_run(name), results=results)

    sizes = (0.3, 0.1, 0.2, 0.1, 0.3)
    return [make(i, f"m{i}", 0.02 * i, 0.9 - 0.1 * i**2, sizes[i]) for i in range(5)]


def test_rows_over_models(models):
    found = correlations(models)
    assert list(found) == ["accuracy", "accuracy/yaw", "accuracy/light", "accuracy/size"]
    assert found["accuracy"].r is None
    assert found["accuracy/yaw"].r == pytest.approx(1.0)
    assert found["accuracy/light"].r == pytest.approx(-0.9589, abs=1e-3)
    assert found["accuracy/size"].r == pytest.approx(0.0, abs=1e-9)
    assert {one.n for one in found.values()} == {5}


def test_the_table(models):
    lines = correlation_table(models).splitlines()
    assert lines[0] == "| pug_imagenet with zero_shot | runs | r | p |"
    assert lines[2:6] == [
        "| accuracy | 5 | – | – |",
        "| accuracy/yaw | 5 | +1.000 | < 0.001 |",
        "| accuracy/light | 5 | -0.959 | 0.010 |",
        "| accuracy/size | 5 | +0.000 | 1.000 |",
    ]


def test_runs_without_images_or_a_number_do_not_count(models):
    blind = replace(models[0], name="blind", text_only=True)
    without = replace(models[1], name="other", results=models[1].results[:1])
    assert correlations([*models, blind, without]) == correlations(models)
    with refused("three runs or more with zero_shot and pug_imagenet, got fewer of 2"):
        correlations([*models[:2], blind])
    with refused("with cifar and pug_imagenet"):
        correlations(models, of="cifar")
