"""Chooses how grounded words joins its evidence and the frozen score, on development data.

In: exports or checkpoints of grounded words, and benchmarks of a world that no test has. Out: the
numbers of each benchmark for the frozen model and at each leak, means over the models. A larger
leak binds better, a smaller one keeps more of what the frozen model knows. Never: a test scene.

    python -m scripts.experiments.leak
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean

import vlmtune
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.plugins import make_benchmarks
from vlmtune.evaluation.suite import run_suite
from vlmtune.model.model import Model

EXPORT = "runs/quickstart/export"
FROZEN = "checkpoints/scenes-clip"
DEVELOPMENT = "configs/experiments/quickstart/development.yaml"
LEAKS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
METRICS = (
    "accuracy",
    "accuracy/cube and sphere",
    "accuracy/cylinder and sphere",
    "accuracy/size",
    "accuracy/shape",
    "accuracy/texture",
    "image_to_text_recall@1",
    "text_to_image_recall@1",
)


def leaking(path: str, weight: float, leak: float) -> Model:
    """Loads grounded words with another weight of the frozen score and another leak."""
    model = vlmtune.load(path)
    assert isinstance(model.adapter, GroundedWords), "expected grounded words"
    model.adapter.scale = weight * model.backbone.logit_scale
    model.adapter.leak = leak
    return model


def measure(models: Sequence[Model], benchmarks: Sequence[Benchmark]) -> Mapping[str, float]:
    """Returns the numbers of each benchmark that `METRICS` names."""
    numbers: dict[str, list[float]] = {}
    for model in models:
        for result in run_suite(benchmarks, model.scorer()).results:
            keys = [key for key in METRICS if key in result.metrics]
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
    parser.add_argument("--weight", type=float, default=1.0, help="of the frozen score")
    parser.add_argument("--leaks", nargs="+", type=float, default=LEAKS)
    options = parser.parse_args()
    benchmarks = make_benchmarks(options.benchmarks)
    rows = {"frozen": measure([vlmtune.load(options.frozen)], benchmarks)}
    for leak in options.leaks:
        models = [leaking(path, options.weight, leak) for path in options.models]
        rows[f"{leak:.2f}"] = measure(models, benchmarks)
    print("leak", *rows["frozen"], sep="\t")
    for name, numbers in rows.items():
        print(name, *(f"{number:.1f}" for number in numbers.values()), sep="\t")


if __name__ == "__main__":
    main()
