"""docs/matrix.md is what `python -m scripts.matrix` writes."""

import pytest

from scripts.matrix import PAGE, Outcome, outcomes, page, plugins
from tests.runs import QUIET

pytestmark = QUIET


def test_a_page_of_outcomes_known_by_hand():
    works = Outcome("pairs", "tokens of layer -2 | word embeddings", "adapter")
    refused = Outcome(refusal="expected a cat, got a dog: feed it")
    rows = {"one": {"a": works, "b": refused}, "two": {"a": refused, "b": works}}
    lines = page(rows).splitlines()
    assert "| | a | b |" in lines
    assert "| one | pairs | – |" in lines
    assert "| two | – | pairs |" in lines
    assert "| one | tokens of layer -2 | word embeddings | adapter |" in lines
    assert lines[-1] == "| one on b, two on a | expected a cat, got a dog: feed it |"


def assert_refusals_name_what_fits(row):
    """What can be chosen in place of a refused backbone is listed, in one line."""
    specs = plugins("backbones")
    paths = [specs[stem]["class_path"] for stem, outcome in row.items() if outcome.scores]
    fitting = {path.rpartition(".")[2] for path in paths}
    assert fitting
    for outcome in row.values():
        assert "\n" not in outcome.refusal
        _, _, choice = outcome.refusal.partition(": choose ")
        named = {name for name in fitting if name in choice}
        assert named == fitting or not outcome.refusal


@pytest.mark.slow
def test_the_page_is_what_runs():
    results = outcomes()
    assert results.keys() == plugins("adapters").keys()
    for row in results.values():
        assert row.keys() == plugins("backbones").keys()
        assert all((x.scores is None) == bool(x.refusal) for x in row.values())
    for row in results.values():
        assert_refusals_name_what_fits(row)
    assert page(results) == PAGE.read_text(encoding="utf-8"), "run `python -m scripts.matrix`"
