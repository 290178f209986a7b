import json
from dataclasses import replace
from pathlib import Path

import pytest

from vlmtune.errors import UserError
from vlmtune.metrics.value import MetricValue
from vlmtune.report import run_report as results
from vlmtune.report.result import Occurrence, Repeat
from vlmtune.report.run_report import RunReport


def test_what_is_saved_is_loaded(tmp_path, make_run):
    run = make_run()
    run.save(tmp_path / "new" / "report.json")
    assert RunReport.load(tmp_path / "new" / "report.json") == run
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.json"]


def test_values_in_the_file(tmp_path, make_run):
    make_run().save(tmp_path / "report.json")
    raw = json.loads((tmp_path / "report.json").read_text())
    assert raw["schema"] == 4
    assert raw["results"][0]["metrics"]["accuracy"] == {
        "value": 0.4,
        "n": 210,
        "chance": 0.25,
        "low": pytest.approx(0.35),
        "high": pytest.approx(0.45),
        "higher_is_better": True,
        "unit": "fraction",
    }
    assert raw["results"][0]["examples"][0]["images"][1]["box"] == [250, 0, 100, 100]
    assert raw["curves"] == {"loss": [[0, 0.7], [10, None], [20, 0.3]]}


def test_a_whole_result_is_kept(tmp_path, make_run):
    run = make_run()
    first = replace(
        run.results[0],
        convention="reference",
        kind="retained",
        items="c0ffee",
        outcomes=(1.0, 0.0, 0.5),
        clusters=(0, 0, 3),
        series={"equivariance": (-0.5, 2.0, 0.0)},
        groups=(0, -1, 1),
        shares=(1.0, 1 / 3),
        degree=2,
        repeats=(Repeat("caption", 9, 30, (Occurrence((0, 4), ("a/b.png",), ("x", "y")),)),),
    )
    whole = replace(
        run,
        results=(first, *run.results[1:]),
        not_run=(("aro", "no file x.json"),),
        blind=True,
    )
    whole.save(tmp_path / "report.json")
    assert RunReport.load(tmp_path / "report.json") == whole


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_earlier_layouts_are_still_read(tmp_path, make_run, schema):
    run = make_run()
    run.save(tmp_path / "report.json")
    raw = json.loads((tmp_path / "report.json").read_text())
    raw["schema"] = schema
    lacked = ["groups", "shares", "degree", "repeats"]
    if schema < 3:
        del raw["blind"]
        lacked += ["kind", "items"]
    if schema == 1:
        del raw["not_run"]
        lacked += ["convention", "outcomes", "clusters", "series"]
    for result in raw["results"]:
        for name in lacked:
            del result[name]
    (tmp_path / "report.json").write_text(json.dumps(raw))
    assert RunReport.load(tmp_path / "report.json") == run
    del raw["results"][0]["citation"]
    (tmp_path / "report.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="citation missing"):
        RunReport.load(tmp_path / "report.json")


def test_every_field_is_documented(tmp_path, make_run):
    make_run().save(tmp_path / "report.json")
    raw = json.loads((tmp_path / "report.json").read_text())
    words = set(results.__doc__.replace(",", " ").split())
    result = raw["results"][0]
    for part in (
        raw,
        raw["provenance"],
        result,
        result["metrics"]["accuracy"],
        result["examples"][0],
    ):
        assert part.keys() <= words


def test_odd_config_values_become_text(tmp_path, make_run):
    run = make_run()
    config = {"path": Path("a/b"), "limit": float("inf"), "pair": (1, 2)}
    replace(run, provenance=replace(run.provenance, config=config)).save(tmp_path / "r.json")
    loaded = RunReport.load(tmp_path / "r.json")
    assert loaded.provenance.config == {"path": "a/b", "limit": None, "pair": [1, 2]}


def test_curves_that_diverge_are_kept_with_gaps(tmp_path, make_run):
    make_run(curves={"loss": ((0, 1.0), (1, float("nan")))}).save(tmp_path / "r.json")
    assert RunReport.load(tmp_path / "r.json").curves == {"loss": ((0, 1.0), (1, None))}


@pytest.mark.parametrize(
    "wrong", [{"value": float("nan")}, {"chance": float("inf")}, {"low": float("nan")}]
)
def test_numbers_that_are_none_are_refused(make_run, wrong):
    run = make_run()
    metric = replace(run.results[0].metrics["accuracy"], **wrong)
    with pytest.raises(UserError, match="finite numbers for accuracy of cola_multi"):
        replace(run, results=(replace(run.results[0], metrics={"accuracy": metric}),))


def test_inconsistent_reports_are_refused(make_run):
    run = make_run()
    with pytest.raises(UserError, match="'cola_multi' twice"):
        replace(run, results=(run.results[0], run.results[0]))
    with pytest.raises(UserError, match="'cola_multi' twice"):
        replace(run, not_run=(("cola_multi", "why"),))
    for wrong in ({"outcomes": (float("nan"),)}, {"series": {"x": (float("inf"),)}}):
        with pytest.raises(UserError, match="finite numbers in"):
            replace(run, results=(replace(run.results[0], **wrong),))
    three = {"outcomes": (1.0, 0.0, 1.0)}
    for wrong, message in (
        ({"clusters": (0, 1)}, "clusters of 3 items of cola_multi, got 2"),
        ({"groups": (0, 1)}, "groups of 3 items of cola_multi, got 2"),
        ({"groups": (0, 2, 1), "shares": (1.0, 1.0)}, "got 2 weights and the group 2"),
        ({"groups": (-1, -1, -1)}, "got 0 weights and the group -1"),
    ):
        with pytest.raises(UserError, match=message):
            replace(run, results=(replace(run.results[0], **three, **wrong),))
    with pytest.raises(UserError, match="primary metric 'nothing'"):
        replace(run, results=(replace(run.results[0], primary="nothing"),))
    with pytest.raises(UserError, match="blank"):
        replace(run, name=" ")
    wrong = {"accuracy": MetricValue(1.0, 1, unit="furlong")}
    with pytest.raises(UserError, match="unit"):
        replace(run, results=(replace(run.results[0], metrics=wrong),))


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
        (["schema"], 5, "schema"),
        (["schema"], True, "schema"),
        (["results", 0, "kind"], "lost", "one of compositional, retained"),
        (["blind"], 1, "bool"),
        (["results", 0, "outcomes"], [None], r"outcomes\[0\]"),
        (["results", 0, "convention"], "mine", "a convention of strict, reference"),
        (["not_run"], [["a"]], "a list of 2"),
        (["schema"], KeyError, "schema"),
        (["name"], 3, r"3' where str should be \(name\)"),
        (["name"], KeyError, "name missing or unknown"),
        (["extra"], 1, "extra missing or unknown"),
        (["provenance", "seed"], True, "provenance.seed"),
        (["provenance", "seconds"], "1", "provenance.seconds"),
        (["results"], {}, "a list should be"),
        (["results", 0, "metrics", "accuracy", "n"], 1.5, r"results\[0\].metrics.accuracy.n"),
        (["results", 0, "metrics", "accuracy", "value"], None, "a number should be"),
        (["results", 0, "examples", 0, "images", 1, "box"], [1, 2], "a list of 4"),
        (["results", 0, "primary"], "other", "primary metric"),
        (["curves", "loss"], [[0]], "a list of 2"),
    ],
)
def test_malformed_file(tmp_path, make_run, where, value, message):
    path = tmp_path / "report.json"
    make_run().save(path)
    raw = json.loads(path.read_text())
    change(raw, where, value)
    path.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=message) as error:
        RunReport.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": NaN}', "{"])
def test_not_a_report(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"expected a report\.json of vlmtune"):
        RunReport.load(path)
    with pytest.raises(UserError, match=r"expected a report\.json of vlmtune"):
        RunReport.load(tmp_path / "absent.json")
