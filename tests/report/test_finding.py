"""The sentence that a report says first, against verdicts counted by hand."""

from dataclasses import replace

import pytest

from vlmtune.report.finding import findings
from vlmtune.report.screen import show

WON, LOST, EVEN = (1.0,) * 12, (0.0,) * 12, (1.0, 0.0) * 6
KINDS = {"a": "compositional", "b": "compositional", "kept": "retained", "kept too": "retained"}


@pytest.fixture
def run_of(make_run):
    """Makes a run with the same outcomes for every item of a benchmark."""

    def made(name, *outcomes, **more):
        run = make_run(name, trained=more.pop("trained", 10))
        results = []
        for (benchmark, kind), rows in zip(KINDS.items(), outcomes, strict=True):
            metric = replace(run.results[0].metrics["accuracy"], value=sum(rows) / 12, n=12)
            facts = {"benchmark": benchmark, "kind": kind, "title": f"The {benchmark}"}
            results.append(
                replace(run.results[0], metrics={"accuracy": metric}, outcomes=rows, **facts)
            )
        return replace(run, results=tuple(results), **more)

    return made


def test_gains_and_losses_are_counted(run_of):
    base = run_of("base", LOST, EVEN, WON, WON, trained=0)
    good, bad = run_of("good", WON, EVEN, WON, LOST), run_of("bad", LOST, LOST, EVEN, LOST)
    text_only = run_of("n-gram", WON, WON, WON, WON, text_only=True)
    first, second, rule = findings([base, bad, good, text_only])
    # Of twelve items McNemar's test needs six more won than lost, and six of `b` are lost.
    assert first.startswith("good against base: +100.0 points [")
    assert "] on The a; 1 of 2 compositional measures rose significantly; 1 of 2 retained" in first
    assert "retained measures fell significantly, most -100.0 points [" in first
    assert first.endswith("] on The kept too; one seed.")
    assert "bad against base: 0 of 2 compositional measures rose significantly, 1 fell;" in second
    assert "2 of 2 retained measures fell significantly, most -100.0 points [" in second
    assert "Tests: 8, not corrected for their number; by chance about one in 20 has" in rule


def test_a_run_without_tests_or_alone_has_no_finding(run_of, make_run, capsys):
    assert findings([run_of("base", WON, WON, WON, WON)]) == []
    assert findings([make_run("a"), make_run("b")]) == []  # reports without outcomes
    text_only = run_of("n-gram", WON, WON, WON, WON, text_only=True)
    assert findings([run_of("base", LOST, LOST, LOST, LOST), text_only]) == []
    runs = [run_of("base", LOST, EVEN, WON, WON), run_of("good", WON, EVEN, WON, WON)]
    show(runs)
    assert capsys.readouterr().out.startswith(findings(runs)[0])
