"""Chooses the weight of the frozen score in grounded words, on development data.

In: exports or checkpoints of grounded words, and benchmarks of validation scenes. Out: the primary
number of each benchmark at each weight, and their mean over benchmarks and models. Never: a test
scene.

    python -m scripts.experiments.frozen_weight runs/quickstart/export
"""

import argparse
from collections.abc import Mapping, Sequence

import vlmtune
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.plugins import make_list
from vlmtune.evaluation.suite import run_suite

DEVELOPMENT = "configs/experiments/quickstart/development.yaml"
WEIGHTS = (0.0, 0.1, 0.2, 0.33, 0.5, 0.7, 1.0)


def measure(path: str, benchmarks: Sequence[Benchmark], weight: float) -> Mapping[str, float]:
    """Returns the primary number of each benchmark with the frozen score weighted so."""
    model = vlmtune.load(path)
    assert isinstance(model.adapter, GroundedWords), "expected an export of grounded words"
    model.adapter.scale = weight * model.backbone.logit_scale
    results = run_suite(benchmarks, model.scorer()).results
    return {result.benchmark: result.metrics[result.primary].value for result in results}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", help="exports or checkpoints of grounded words")
    parser.add_argument("--benchmarks", nargs="+", default=[DEVELOPMENT])
    parser.add_argument("--weights", nargs="+", type=float, default=WEIGHTS)
    options = parser.parse_args()
    benchmarks = make_list(Benchmark, "benchmarks", options.benchmarks)  # type: ignore[type-abstract]
    for weight in options.weights:
        measured = [measure(path, benchmarks, weight) for path in options.models]
        means = {}
        for name in measured[0]:
            means[name] = sum(numbers[name] for numbers in measured) / len(measured)
        overall = sum(means.values()) / len(means)
        listed = "  ".join(f"{name} {100 * value:.1f}" for name, value in means.items())
        print(f"weight {weight:.2f}: {listed}  mean {100 * overall:.1f}", flush=True)


if __name__ == "__main__":
    main()
