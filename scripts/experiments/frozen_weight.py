"""Chooses the weight of the frozen score in grounded words, on development data.

In: exports or checkpoints of grounded words, and benchmarks of validation scenes. Out: the number
of each benchmark for the frozen model and at each weight, means over the models. The weight to
choose is the smallest one at which no retained number is below the frozen model's: a larger one
only outvotes the evidence, above all where a sentence says that something is absent. Never: a test
scene.

    python -m scripts.experiments.frozen_weight
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean

import vlmtune
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.plugins import make_list
from vlmtune.evaluation.suite import run_suite
from vlmtune.model.model import Model

EXPORT = "runs/quickstart/export"
FROZEN = "checkpoints/scenes-clip"
DEVELOPMENT = "configs/experiments/quickstart/development.yaml"
WEIGHTS = (0.0, 0.1, 0.2, 0.33, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RECALLS = ("image_to_text_recall@1", "text_to_image_recall@1")


def weighted(path: str, weight: float) -> Model:
    """Loads grounded words with another weight of the frozen score."""
    model = vlmtune.load(path)
    assert isinstance(model.adapter, GroundedWords), "expected grounded words"
    model.adapter.scale = weight * model.backbone.logit_scale
    return model


def measure(models: Sequence[Model], benchmarks: Sequence[Benchmark]) -> Mapping[str, float]:
    """Returns the primary number of each benchmark, or both recalls at 1 of a retrieval."""
    numbers: dict[str, list[float]] = {}
    for model in models:
        for result in run_suite(benchmarks, model.scorer()).results:
            keys = RECALLS if RECALLS[0] in result.metrics else (result.primary,)
            for key in keys:
                value = 100 * result.metrics[key].value
                numbers.setdefault(f"{result.benchmark} {key}", []).append(value)
    return {name: mean(values) for name, values in numbers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    helped = "exports or checkpoints of grounded words"
    parser.add_argument("models", nargs="*", default=[EXPORT], help=helped)
    parser.add_argument("--frozen", default=FROZEN, help="the frozen model")
    parser.add_argument("--benchmarks", nargs="+", default=[DEVELOPMENT])
    parser.add_argument("--weights", nargs="+", type=float, default=WEIGHTS)
    options = parser.parse_args()
    benchmarks = make_list(Benchmark, "benchmarks", options.benchmarks)  # type: ignore[type-abstract]
    rows = {"frozen": measure([vlmtune.load(options.frozen)], benchmarks)}
    for weight in options.weights:
        models = [weighted(path, weight) for path in options.models]
        rows[f"{weight:.2f}"] = measure(models, benchmarks)
    print("weight", *rows["frozen"], sep="\t")
    for name, numbers in rows.items():
        print(name, *(f"{number:.1f}" for number in numbers.values()), sep="\t")


if __name__ == "__main__":
    main()
