from dataclasses import replace

import pytest

from tests.refusals import refused
from vlmtune.report import RunReport, over_seeds, to_csv, to_html, to_markdown
from vlmtune.report.differences import compare_with_first, items_alone
from vlmtune.results import MetricValue, Result


@pytest.fixture
def seed(make_run):
    """Makes the run of one seed from the outcomes of its items."""

    def made(number, outcomes, name="mm", trained=5, digest="d", **changes) -> RunReport:
        run = make_run(name, trained=trained, curves={"loss": ((0, 1.0 + (number or 0)), (5, 0.5))})
        value = sum(outcomes) / len(outcomes)
        accuracy = MetricValue(value, len(outcomes), 0.25, value - 0.1, value + 0.1)
        result = Result(
            "cola", "1", "accuracy", {"accuracy": accuracy}, outcomes=outcomes, items_digest=digest
        )
        provenance = replace(run.provenance, seed=number, seconds=10.0)
        return replace(run, results=(replace(result, **changes),), provenance=provenance)

    return made


def test_mean_and_range_and_every_seed_in_the_csv(seed):
    run = over_seeds("mm", [seed(0, (1.0, 1.0, 0.0, 0.0)), seed(1, (1.0, 1.0, 1.0, 0.0))])
    assert run.name == "mm (mean and range of 2 seeds)"
    metric = run.metric("cola", "accuracy")
    assert (metric.value, metric.low, metric.high, metric.n) == (0.625, 0.5, 0.75, 4)
    assert run.results[0].outcomes == (1.0, 1.0, 0.5, 0.0)
    assert run.curves == {"loss": ((0, 1.5), (5, 0.5))}
    early, diverged = seed(0, (1.0,)), seed(1, (1.0,))
    diverged = replace(diverged, curves={"loss": ((0, 3.0), (5, None))})
    assert over_seeds("mm", [early, diverged]).curves == {"loss": ((0, 2.0),)}
    assert run.provenance.seconds == 20
    assert (run.seeds, run.provenance.seed) == ("0, 1", None)
    run = over_seeds("mm", [seed(3, (1.0, 0.0)), seed(5, (1.0, 1.0))])
    head, *lines = to_csv([run]).splitlines()
    assert head.endswith(",seed")
    assert [line.split(",")[0] + line.split(",")[-1] for line in lines] == ["mm3", "mm5"]


def test_a_benchmark_that_a_seed_lacks_is_not_run(seed):
    same = (1.0, 0.0)
    others = [seed(1, same, version="2"), seed(1, same, digest="e"), seed(1, (1.0,))]
    told = [(one, "2 of 2 seeds have it, in 2 versions") for one in others]
    told += [(replace(others[0], results=()), "1 of 2 seeds have it, in 1 versions")]
    for other, said in told:
        run = over_seeds("mm", [seed(0, same), other])
        assert run.results == ()
        assert run.not_run == (("cola", said),)


def test_seeds_must_differ_and_the_mean_of_equal_numbers_is_the_number(seed):
    with refused("different seeds"):
        over_seeds("mm", [seed(0, (1.0,)), seed(0, (1.0,))])
    unable = [replace(seed(i, (1.0, 0.0)), not_run=(("aro", "no images"),)) for i in range(3)]
    assert over_seeds("mm", unable).not_run == (("aro", "no images"),)
    # The mean of equal numbers is the number: three times 0.998 over three is not, in floats.
    same = [seed(i, (1.0,) * 499 + (0.0,)) for i in range(3)]
    assert over_seeds("mm", same).metric("cola", "accuracy").value == 0.998


def test_the_test_counts_seeds(seed):
    """One lucky seed of two is no difference, though 100 items say so."""
    frozen = seed(None, (0.0, 1.0) * 50, "zero-shot", trained=0)
    lucky = over_seeds("mm", [seed(0, (1.0,) * 100), seed(1, (0.0, 1.0) * 50)])
    (comparison,) = compare_with_first([frozen, lucky])
    assert comparison.change == 0.25
    assert comparison.paired.test == "seeds and items"
    assert comparison.verdict == "not significant"
    steady = over_seeds("mm", [seed(0, (1.0,) * 100), seed(1, (1.0,) * 99 + (0.0,))])
    (comparison,) = compare_with_first([frozen, steady])
    assert comparison.verdict == "better"


def test_one_seed_is_no_recipe(seed):
    """One lucky seed of a training against three others of it; of a frozen model, it counts."""
    rows = [(1.0,) * k + (0.0,) * (100 - k) for k in (70, 60, 65)]
    trained = [seed(i, row) for i, row in enumerate(rows)]
    lone = (1.0,) * 80 + (0.0,) * 20
    for parameters, verdict in ((4, "not significant"), (0, "worse")):
        first = seed(9, lone, "a", parameters)
        (comparison,) = compare_with_first([first, over_seeds("mm", trained)])
        assert comparison.verdict == verdict
    # Whether another tool trained its model is not known.
    unknown = replace(first, provenance=replace(first.provenance, commit=""))
    (comparison,) = compare_with_first([unknown, over_seeds("mm", trained)])
    assert comparison.verdict == "not significant"


def test_a_run_of_one_seed_says_that_items_alone_were_tested(seed):
    frozen = seed(None, (0.0, 1.0), "zero-shot", trained=0)
    single, several = seed(0, (1.0, 1.0)), over_seeds("mm", [seed(i, (1.0, 1.0)) for i in (0, 1)])
    assert items_alone([frozen, single]) == ("mm",)
    assert items_alone([frozen, several]) == ()
    assert items_alone([several, single]) == ()  # one seed is taken to vary as the others do
    assert items_alone([single, replace(single, name="lora")]) == ("mm", "lora")
    note = "Other seeds of the training were not tested"
    for write in (to_markdown, to_html):
        assert note in write([frozen, single])
        assert note not in write([frozen, several])
        assert "0, 1" in write([frozen, several])
