"""The laws of a benchmark, held by every plug-in that has a YAML in configs/plugins/benchmarks."""

import importlib
import json
import math
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
import yaml

from tests.benchmarks.models import weighted
from tests.refusals import refused
from vlmtune.benchmarks.base import Benchmark
from vlmtune.config import instantiate
from vlmtune.evaluation.suite import load_all
from vlmtune.metrics import cluster_variance
from vlmtune.results.result import Result

CONFIGS = sorted((Path(__file__).parents[2] / "configs/plugins/benchmarks").glob("*.yaml"))
assert CONFIGS


def _class(config: Path) -> type[Benchmark]:
    module, _, name = yaml.safe_load(config.read_text())["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def _made(config: Path) -> Benchmark:
    return instantiate(yaml.safe_load(config.read_text()), Benchmark)


# A benchmark of embeddings has no scores to hold the laws of; its own tests state its laws.
SCORED = [config for config in CONFIGS if _made(config).needs == "scores"]


@pytest.fixture(scope="module", params=SCORED, ids=lambda path: path.stem)
def benchmark(request, tmp_path_factory) -> Benchmark:
    """A benchmark with its files, which no test may change."""
    made = _class(request.param).fixture(tmp_path_factory.mktemp("files"))
    made.load()
    return made


@pytest.fixture
def no_intervals(monkeypatch):
    """Intervals take most of the time; for tests of other numbers."""
    some = cluster_variance.Variance(0.0, 1.0, 2)
    monkeypatch.setattr(cluster_variance, "_one_way", lambda *parts: some)


def run(benchmark: Benchmark, values: torch.Tensor) -> Result:
    return benchmark.run(lambda images, texts, pairs=None: values.clone())


def primary(result: Result) -> float:
    return result.metrics[result.primary].value


def coarse(benchmark: Benchmark, seed: int) -> torch.Tensor:
    """Random scores of three values: most comparisons are ties."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, benchmark.items.truth.shape, generator=generator).double()


def last(benchmark: Benchmark) -> tuple[int, ...]:
    """The place of the last score that is asked for."""
    return tuple(size - 1 for size in benchmark.items.truth.shape)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_yaml_and_plug_in_have_one_stem_and_the_common_options(config):
    made = _made(config)
    assert made.name
    assert type(made).__module__ == f"vlmtune.benchmarks.{config.stem}"
    options = {field.name: field.default for field in fields(made)}
    assert (options["limit"], options["seed"]) == (None, 0)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_limit_is_at_least_1_and_a_convention_an_option_where_it_changes_something(config):
    for option, value in (("convention", "lenient"), ("limit", 0)):
        spec = yaml.safe_load(config.read_text())
        spec["init_args"][option] = value
        with refused(option):
            instantiate(spec, Benchmark)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_names_that_an_option_lists_are_known_and_given_once(config):
    made = _made(config)
    for option, known in made.subsets_of.items():
        unknown = known[-1] * 2
        for wrong in ([], [unknown], [known[0], known[0]]):
            spec = made.spec()
            spec["init_args"][option] = wrong
            with refused(f"{option} of .*, each once, got"):
                instantiate(spec, Benchmark)


def test_states_what_it_is_and_an_oracle_reaches_one(benchmark):
    result = run(benchmark, benchmark.items.truth.double())
    assert primary(result) == 1.0
    assert result.benchmark == benchmark.name
    assert result.version
    assert result.citation
    assert result.primary == benchmark.primary
    assert result.convention == "strict"
    metric = result.metrics[result.primary]
    assert metric.n > 0
    assert metric.chance is not None
    assert all(image.path.is_file() for image in benchmark.items.images)
    assert len(set(benchmark.items.images)) == len(benchmark.items.images)
    assert len(set(benchmark.items.texts)) == len(benchmark.items.texts)


def test_pairs_are_distinct_and_in_range(benchmark):
    pairs, shape = benchmark.items.pairs, (len(benchmark.items.images), len(benchmark.items.texts))
    if pairs is None:
        assert tuple(benchmark.items.truth.shape) == shape
        return
    assert pairs.dtype == torch.int64
    assert pairs.shape == (len(benchmark.items.truth), 2)
    assert len(pairs)
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs)
    assert pairs.min() >= 0
    assert (pairs < torch.tensor(shape)).all()


def test_every_image_and_every_text_is_needed(benchmark):
    # What no pair names would be encoded for nothing.
    if (pairs := benchmark.items.pairs) is not None:
        assert len(pairs[:, 0].unique()) == len(benchmark.items.images)
        assert len(pairs[:, 1].unique()) == len(benchmark.items.texts)


def test_it_asks_once_for_what_it_says(benchmark):
    asked = []

    def score(images, texts, pairs=None):
        asked.append((images, texts, pairs))
        return benchmark.items.truth.double()

    benchmark.run(score)
    ((images, texts, pairs),) = asked
    items = benchmark.items
    assert (tuple(images), tuple(texts)) == (tuple(items.images), tuple(items.texts))
    assert pairs is None if items.pairs is None else pairs.equal(items.pairs)


def test_inverse_reaches_zero(benchmark, no_intervals):
    result = run(benchmark, -benchmark.items.truth.double())
    if benchmark.partial_credit:
        assert primary(result) <= result.metrics[result.primary].chance + 1e-12
    else:
        assert primary(result) == 0.0


def test_constant_never_wins(benchmark, no_intervals):
    for constant in [-1.0, 0.0, 100.0]:
        result = run(benchmark, torch.full(benchmark.items.truth.shape, constant))
        chance = result.metrics[result.primary].chance
        assert primary(result) <= (chance + 1e-12 if benchmark.partial_credit else 0.0)
        assert not any(example.correct for example in result.examples)


@pytest.mark.slow
def test_random_scores_are_near_chance(benchmark, no_intervals):
    # Four standard errors of the mean over draws; without ties, as real scores have hardly any.
    generator = torch.Generator().manual_seed(0)
    shape, found = benchmark.items.truth.shape, []
    for _ in range(50):
        result = run(benchmark, torch.rand(shape, generator=generator, dtype=torch.float64))
        found.append(primary(result))
    chance, values = result.metrics[result.primary].chance, torch.tensor(found)
    error = float(4 * values.std() / 50**0.5) + 1e-9
    assert float(values.mean()) == pytest.approx(chance, abs=error)


def test_ties_are_not_broken_by_the_order_of_candidates(benchmark, no_intervals):
    # Breaking every tie for the truth must not lower the number, breaking it against the truth must
    # not raise it; where no credit is partial, the latter must change nothing.
    for seed in range(2):
        values, nudge = coarse(benchmark, seed), 0.01 * benchmark.items.truth.double()
        tied = primary(run(benchmark, values))
        against, favoured = (primary(run(benchmark, values + sign * nudge)) for sign in (-1, 1))
        assert against <= tied + 1e-12
        assert tied <= favoured + 1e-12
        if not benchmark.partial_credit:
            assert tied == against


def test_a_score_that_is_no_number_raises(benchmark):
    for wrong in [torch.nan, torch.inf, -torch.inf]:
        values = coarse(benchmark, 0)
        values[last(benchmark)] = wrong
        with refused("1 are NaN or infinite"):
            run(benchmark, values)


def test_a_missing_score_raises(benchmark):
    with refused("expected scores of shape"):
        run(benchmark, coarse(benchmark, 0)[:-1])


def test_single_precision_and_graphs_are_taken(benchmark):
    values = coarse(benchmark, 1)
    learned = values.float().requires_grad_()
    assert run(benchmark, learned).metrics == run(benchmark, values).metrics


def test_monotone_rescaling_changes_nothing(benchmark):
    values = coarse(benchmark, 2)
    one, other = run(benchmark, values), run(benchmark, 30 * values - 200)
    assert one.metrics == other.metrics
    assert one.outcomes == other.outcomes


def test_outcomes_are_what_the_primary_metric_is_the_mean_of(benchmark, no_intervals):
    for seed in range(3):
        result = run(benchmark, coarse(benchmark, seed))
        assert result.outcomes
        assert all(0 <= outcome <= 1 for outcome in result.outcomes)
        if result.groups:
            assert primary(result) == weighted(result)
        else:
            outcomes = torch.tensor(result.outcomes, dtype=torch.float64)
            assert float(outcomes.mean()) == pytest.approx(primary(result), abs=1e-15)
        for numbers in (result.clusters, result.groups):
            assert not numbers or len(numbers) == len(result.outcomes)


def test_items_are_of_its_images_and_captions(benchmark):
    images, texts = set(benchmark.items.images), set(benchmark.items.texts)
    for item in benchmark.items.compared:
        assert images.issuperset(item.images)
        assert texts.issuperset((*item.true, *item.false))
    assert all(0 < repeat.total <= repeat.n for repeat in benchmark.repeats())


def test_a_result_is_written_without_loss(benchmark):
    result = run(benchmark, coarse(benchmark, 4))
    for metric in result.metrics.values():
        numbers = (metric.value, metric.chance, metric.low, metric.high)
        assert all(number is None or math.isfinite(number) for number in numbers)
    assert json.dumps(asdict(result), default=str, allow_nan=False)


def test_loading_twice_and_running_twice_is_the_same(benchmark):
    values = coarse(benchmark, 3)
    first = run(benchmark, values)
    benchmark.load()
    assert run(benchmark, values) == first


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_files_are_read_late_and_a_missing_one_is_one_line(config, tmp_path):
    made = _class(config).fixture(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.unlink()
    with refused():
        made.load()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_an_empty_image_is_named_before_anything_is_encoded(config, tmp_path):
    kind = _class(config)
    made = kind.fixture(tmp_path)
    path = made.items.images[-1].path
    path.write_bytes(b"")  # what a download that stopped leaves behind
    with refused("1 are empty files") as error:
        load_all([kind(**made.spec()["init_args"])])
    assert made.source in str(error.value)
    assert str(path) in str(error.value)
