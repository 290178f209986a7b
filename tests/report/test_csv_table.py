import csv
import io
from dataclasses import replace

import pytest

from vlmtune.errors import UserError
from vlmtune.report.csv_table import COLUMNS, to_csv


def test_every_number_of_every_run_is_a_line(make_run):
    runs = [
        make_run("zero, shot", 0.2, trained=0),
        replace(make_run("mm", 0.1 + 0.2), text_only=True),
    ]
    lines = list(csv.DictReader(io.StringIO(to_csv(runs))))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == sum(len(r.metrics) for run in runs for r in run.results)
    first = lines[0]
    assert (first["run"], first["benchmark"], first["metric"]) == (
        "zero, shot",
        "cola_multi",
        "accuracy",
    )
    assert float(first["value"]) == 0.2
    assert (first["n"], first["chance"], first["convention"]) == ("210", "0.25", "strict")
    assert (first["primary"], first["text_only"], first["kind"]) == (
        "true",
        "false",
        "compositional",
    )
    last = lines[-1]
    assert (last["chance"], last["low"], last["high"], last["unit"]) == ("", "", "", "count")
    assert float(lines[len(lines) // 2]["value"]) == 0.1 + 0.2  # in full
    assert last["text_only"] == "true"


def test_there_must_be_a_run():
    with pytest.raises(UserError, match="at least one run"):
        to_csv([])
