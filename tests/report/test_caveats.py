from dataclasses import replace

import pytest

from tests.report.conftest import changed
from vlmtune.report.caveats import beats_chance, caveats
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Occurrence, Repeat, Result


@pytest.fixture
def run_of(make_run):
    """Makes a run of one benchmark with the given metrics, the first of which is primary."""

    def made(name, text_only=False, **metrics):
        result = Result("aro", "1", next(iter(metrics)), metrics)
        return replace(make_run(name), results=(result,), text_only=text_only)

    return made


LACKING = ["accuracy has no chance level", "accuracy has no interval"]


def score(value, low, high, n=100, **more):
    return MetricValue(value, n, 0.5, low, high, **more)


def texts(*runs):
    return [caveat.text for caveat in caveats(runs)]


def test_text_only_scores_above_chance_and_runs_that_are_no_better_are_caveats(run_of):
    with_images = run_of("mm", accuracy=score(0.9, 0.85, 0.94))
    text = run_of("text", True, accuracy=score(0.6, 0.51, 0.68))
    (caveat,) = caveats([with_images, text])
    assert (caveat.benchmark, caveat.text_only) == ("aro", True)
    assert caveat.text.startswith("text reaches 60.0 % [51.0–68.0], chance is 50.0 %")
    level = run_of("text", True, accuracy=score(0.6, 0.49, 0.68))
    assert caveats([with_images, level]) == ()
    one, two = (run_of(name, accuracy=score(x, 0.5, 0.7)) for name, x in (("a", 0.6), ("b", 0.61)))
    _, second = texts(one, two, text)
    assert second.startswith("a is no better than text (60.0 % against 60.0 %")


def test_lower_ranks_beat_chance():
    rank = MetricValue(2.0, 10, 3.0, 1.5, 2.5, higher_is_better=False, unit="rank")
    assert beats_chance(rank)
    assert not beats_chance(replace(rank, high=3.5))
    assert not beats_chance(replace(rank, chance=None))
    assert not beats_chance(replace(rank, low=None))


def test_counts_and_missing_intervals_are_listed(run_of):
    def made(name, alike):
        counts = {"pairs_alike": alike, "none": MetricValue(0.0, 9, unit="count")}
        return run_of(name, accuracy=MetricValue(0.5, 9), **counts)

    three, four = (MetricValue(x, 9, unit="count") for x in (3.0, 4.0))
    assert texts(made("a", three), made("b", three)) == [*LACKING, "pairs alike: 3 of 9"]
    known = run_of("c", accuracy=score(0.5, 0.4, 0.6, n=9))
    assert texts(made("a", three), known) == [LACKING[0], "pairs alike: 3 of 9 (a)"]
    without = run_of("b", accuracy=MetricValue(0.5, 9))
    for others in ([without], [without, run_of("text", True, accuracy=MetricValue(0.5, 9))]):
        assert texts(made("a", three), *others) == [*LACKING, "pairs alike: 3 of 9 (a)"]
    alike = ["pairs alike: 3 of 9 (a)", "pairs alike: 4 of 9 (b)"]
    assert texts(made("a", three), made("b", four)) == [*LACKING, *alike]
    assert not any(caveat.text_only for caveat in caveats([made("a", three)]))


def test_a_limit_is_listed_with_its_seed(run_of):
    def made(name, **arguments):
        run = run_of(name, accuracy=score(0.5, 0.4, 0.6))
        config = {"benchmarks": {"aro": {"class_path": "a.B", "init_args": arguments}}}
        return replace(run, provenance=replace(run.provenance, config=config))

    sampled, first = made("a", limit=6, seed=3), made("b", limit=6, seed=None)
    said, whole = "limit 6: items sampled with seed 3", made("whole", limit=None)
    assert texts(sampled, replace(sampled, name="c")) == [said]
    assert texts(sampled, first, whole) == [f"{said} (a)", "limit 6: the first items only (b)"]
    assert texts(sampled, whole) == [f"{said} (a)"]
    assert texts(whole, replace(sampled, text_only=True)) == []


def test_what_occurs_twice_is_listed(run_of):
    def made(name, *repeats, **more):
        run = replace(run_of(name, accuracy=score(0.5, 0.4, 0.6)), **more)
        return changed(run, repeats=repeats)

    cats = Occurrence((0, 2, 5), ("a/0.png",), ("a cat",))
    pairs = Occurrence((1, 3), ("a/1.png", "a/2.png"), ("a", "b"))
    again = Repeat("item", 7, 9, (cats, pairs))
    twice = Repeat("caption", 1, 9, (Occurrence((4,), ("a/4.png",), ("a dog",)),))
    result = caveats([made("x", again, twice), made("y", again, twice), made("z", text_only=True)])
    assert [(one.benchmark, one.text, one.text_only) for one in result] == [
        ("aro", "items that repeat an earlier one: 7 of 9", False),
        ("aro", "items whose right caption is also a wrong one: 1 of 9", False),
    ]
    assert [one.examples for one in result] == [
        ('0, 2, 5 (a/0.png): "a cat"', '1, 3 (a/1.png, a/2.png): "a"; "b"', "and 4 more"),
        ('4 (a/4.png): "a dog"',),
    ]
    image = Repeat("image", 30, 99, twice.listed)
    result = caveats([made("x", image), made("y")])
    listed = [(one.text, one.examples[-1]) for one in result]
    assert listed == [("items with the same image twice: 30 of 99 (x)", "and 29 more")]
    alone = made("x", image, text_only=True)
    assert texts(alone) == ["items with the same image twice: 30 of 99"]


def test_few_clusters_and_few_captions_are_named(run_of):
    def made(clusters, sets=()):
        group = {f"accuracy/{i}": score(0.9, 0.5, 0.95, clusters=3) for i in range(5)}
        run = run_of("mm", accuracy=score(0.9, 0.2, 0.95, clusters=clusters), **group)
        return changed(run, outcomes=(1.0,) * len(sets), caption_sets=sets)

    first, second = texts(made(2, (0, 1) * 50))
    assert first.startswith("fewer than 20 independent clusters")
    assert "accuracy 2, accuracy/0 3, accuracy/1 3, accuracy/2 3, accuracy/3 3, 1 more" in first
    assert second == "only 2 different sets of captions for 100 items"
    many = run_of("mm", accuracy=score(0.9, 0.8, 0.95, clusters=20))
    unknown = run_of("mm", accuracy=score(0.9, 0.8, 0.95))  # clusters that are not known
    assert texts(many) == texts(unknown) == []
