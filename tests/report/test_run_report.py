import inspect
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.report.conftest import changed
from vlmtune.report.run_report import SCHEMA, Provenance, RunReport
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Occurrence, Repeat, Result


def test_values_in_the_file(tmp_path, make_run):
    path = tmp_path / "report.json"
    make_run().save(path)
    raw = json.loads(path.read_text())
    assert raw["schema"] == SCHEMA
    interval = {"low": pytest.approx(0.35), "high": pytest.approx(0.45)}
    rest = {"higher_is_better": True, "unit": "fraction", "clusters": None}
    accuracy = {"value": 0.4, "n": 210, "chance": 0.25, **interval, **rest}
    assert raw["results"][0]["metrics"]["accuracy"] == accuracy
    assert raw["results"][0]["examples"][0]["images"][1]["box"] == [250, 0, 100, 100]
    assert raw["curves"] == {"loss": [[0, 0.7], [10, None], [20, 0.3]]}


def test_a_whole_result_is_kept(tmp_path, make_run):
    run = make_run()
    first = changed(
        run,
        convention="reference",
        kind="retained",
        items_digest="c0ffee",
        outcomes=(1.0, 0.0, 0.5),
        clusters=(0, 0, 3),
        caption_sets=(1, 0, 0),
        series={"equivariance": (-0.5, 2.0, 0.0)},
        groups=(0, -1, 1),
        group_weights=(1.0, 1 / 3),
        degree=2,
        repeats=(Repeat("caption", 9, 30, (Occurrence((0, 4), ("a/b.png",), ("x", "y")),)),),
    )
    whole = replace(first, not_run=(("aro", "no file x.json"),), text_only=True)
    path = tmp_path / "new/report.json"
    for saved in (run, whole):
        saved.save(path)
        assert RunReport.load(path) == saved
        assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "part", [RunReport, Provenance, Result, MetricValue, Repeat, Occurrence, Example]
)
def test_every_field_is_documented(part):
    attributes = inspect.getdoc(part).partition("Attributes:")[2]
    assert all(f"\n    {field.name}: " in attributes for field in fields(part))


def test_odd_config_values_become_text_and_curves_that_diverge_have_gaps(tmp_path, make_run):
    run = make_run(curves={"loss": ((0, 1.0), (1, float("nan")))})
    config = {"path": Path("a/b"), "limit": float("inf"), "pair": (1, 2)}
    replace(run, provenance=replace(run.provenance, config=config)).save(tmp_path / "r.json")
    loaded = RunReport.load(tmp_path / "r.json")
    assert loaded.provenance.config == {"path": "a/b", "limit": None, "pair": [1, 2]}
    assert loaded.curves == {"loss": ((0, 1.0), (1, None))}


def test_inconsistent_reports_are_refused(make_run):
    run = make_run()
    first = run.results[0]
    with refused("'cola_multi' twice"):
        replace(run, results=(first, first))
    with refused("'cola_multi' twice"):
        replace(run, not_run=(("cola_multi", "why"),))
    nan, infinity = float("nan"), float("inf")
    for wrong in ({"value": nan}, {"chance": infinity}, {"low": nan}):
        with refused("finite numbers for accuracy of cola_multi"):
            changed(run, metrics={"accuracy": replace(first.metrics["accuracy"], **wrong)})
    for wrong in ({"outcomes": (nan,)}, {"series": {"x": (infinity,)}}):
        with refused("finite numbers for"):
            changed(run, **wrong)
    for wrong, message in (
        ({"clusters": (0, 1)}, "clusters of 3 items of cola_multi, got 2"),
        ({"groups": (0, 1)}, "groups of 3 items of cola_multi, got 2"),
        ({"groups": (0, 2, 1), "group_weights": (1.0, 1.0)}, "got 2 weights and the group 2"),
        ({"groups": (-1, -1, -1)}, "got 0 weights and the group -1"),
    ):
        with refused(message):
            changed(run, outcomes=(1.0, 0.0, 1.0), **wrong)
    with refused("primary metric 'nothing'"):
        changed(run, primary="nothing")


def change(raw, where, value):
    *path, last = where
    for key in path:
        raw = raw[key]
    if value is KeyError:
        del raw[last]
    else:
        raw[last] = value


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["schema"], 4, "got schema 4, not 5: evaluate the model again"),
        (["results", 0, "kind"], "lost", "results.0.kind: .*'retained' or 'sensitivity'"),
        (["extra"], 1, "extra: Unexpected"),
        (["provenance", "seconds"], float("nan"), "provenance.seconds: .*finite"),
        (["results", 0, "primary"], "other", "primary metric"),
    ],
)
def test_malformed_file(tmp_path, make_run, where, value, message):
    path = tmp_path / "report.json"
    make_run().save(path)
    raw = json.loads(path.read_text())
    change(raw, where, value)
    path.write_text(json.dumps(raw))
    with refused(message):
        RunReport.load(path)
