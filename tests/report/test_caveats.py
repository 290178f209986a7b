from dataclasses import replace

import pytest

from vlmtune.metrics.value import MetricValue
from vlmtune.report.caveats import beats_chance, remarks
from vlmtune.report.result import Occurrence, Repeat, Result


@pytest.fixture
def run_of(make_run):
    """Makes a run of one benchmark with the given metrics, the first of which is primary."""

    def made(name, blind=False, **metrics):
        result = Result("aro", "1", next(iter(metrics)), metrics)
        return replace(make_run(name), results=(result,), text_only=blind)

    return made


def score(value, low, high, n=100, **more):
    return MetricValue(value, n, 0.5, low, high, **more)


def test_a_blind_score_above_chance_is_remarked(run_of):
    seeing = run_of("mm", accuracy=score(0.9, 0.85, 0.94))
    blind = run_of("blind", True, accuracy=score(0.6, 0.51, 0.68))
    (remark,) = remarks([seeing, blind])
    assert (remark.benchmark, remark.serious) == ("aro", True)
    assert remark.text.startswith("blind reaches 60.0 % [51.0–68.0], chance is 50.0 %")
    level = run_of("blind", True, accuracy=score(0.6, 0.49, 0.68))
    assert remarks([seeing, level]) == ()


def test_runs_that_are_no_better_than_blind_are_named(run_of):
    blind = run_of("blind", True, accuracy=score(0.6, 0.51, 0.68))
    one, two = (run_of(name, accuracy=score(x, 0.5, 0.7)) for name, x in (("a", 0.6), ("b", 0.61)))
    texts = [remark.text for remark in remarks([one, two, blind])]
    assert len(texts) == 2
    assert texts[1].startswith("a is no better than blind (60.0 %")


def test_lower_ranks_beat_chance():
    rank = MetricValue(2.0, 10, 3.0, 1.5, 2.5, higher_is_better=False, unit="rank")
    assert beats_chance(rank)
    assert not beats_chance(replace(rank, high=3.5))
    assert not beats_chance(replace(rank, chance=None))
    assert not beats_chance(replace(rank, low=None))


def test_counts_and_what_is_lacking_are_listed(run_of):
    def made(name, alike):
        counts = {"pairs_alike": alike, "none": MetricValue(0.0, 9, unit="count")}
        return run_of(name, accuracy=MetricValue(0.5, 9), **counts)

    three, four = (MetricValue(x, 9, unit="count") for x in (3.0, 4.0))
    texts = [remark.text for remark in remarks([made("a", three), made("b", three)])]
    assert texts == [
        "no chance level is defined for accuracy",
        "accuracy has no interval",
        "pairs alike: 3 of 9",
    ]
    texts = [remark.text for remark in remarks([made("a", three), made("b", four)])]
    assert texts[2:] == ["pairs alike: 3 of 9 (a)", "pairs alike: 4 of 9 (b)"]
    assert not any(remark.serious for remark in remarks([made("a", three)]))


def test_a_part_of_the_items_is_said_with_its_seed(run_of):
    def made(name, **arguments):
        run = run_of(name, accuracy=score(0.5, 0.4, 0.6))
        config = {"benchmarks": {"aro": {"class_path": "a.B", "init_args": arguments}}}
        return replace(run, provenance=replace(run.provenance, config=config))

    drawn, first = made("a", limit=6, seed=3), made("b", limit=6, seed=None)
    part = "a part of the items only, limit 6, "
    said = [remark.text for remark in remarks([drawn, replace(drawn, name="c")])]
    assert said == [f"{part}drawn with seed 3"]
    said = [remark.text for remark in remarks([drawn, first, made("whole", limit=None)])]
    assert said == [f"{part}drawn with seed 3 (a)", f"{part}the first ones (b)"]
    assert remarks([made("whole", limit=None), replace(drawn, text_only=True)]) == ()


def test_what_occurs_twice_is_listed(run_of):
    def made(name, *repeats, **more):
        run = replace(run_of(name, accuracy=score(0.5, 0.4, 0.6)), **more)
        return replace(run, results=(replace(run.results[0], repeats=repeats),))

    again = Repeat(
        "item",
        7,
        9,
        (
            Occurrence((0, 2, 5), ("a/0.png",), ("a cat",)),
            Occurrence((1, 3), ("a/1.png", "a/2.png"), ("a", "b")),
        ),
    )
    twice = Repeat("caption", 1, 9, (Occurrence((4,), ("a/4.png",), ("a dog",)),))
    found = remarks([made("x", again, twice), made("y", again, twice), made("z", text_only=True)])
    assert [(one.benchmark, one.text, one.serious) for one in found] == [
        ("aro", "items that repeat an earlier one: 7 of 9", False),
        ("aro", "items whose right caption is also a wrong one: 1 of 9", False),
    ]
    assert [one.lines for one in found] == [
        ('0, 2, 5 (a/0.png): "a cat"', '1, 3 (a/1.png, a/2.png): "a"; "b"', "and 4 more"),
        ('4 (a/4.png): "a dog"',),
    ]
    image = Repeat("image", 30, 99, twice.listed)
    found = remarks([made("x", image), made("y")])
    assert [(one.text, one.lines[-1]) for one in found] == [
        ("items with the same image twice: 30 of 99 (x)", "and 29 more")
    ]
    assert [one.text for one in remarks([made("x", image, text_only=True)])] == [
        "items with the same image twice: 30 of 99"
    ]
