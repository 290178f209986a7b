import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from vlmtune.report.items_file import check_format, items_beside, read_items, write_items
from vlmtune.results.item_row import ItemRow
from vlmtune.types import ImageRef


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_items_are_read_as_they_were_written(item_rows, tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    written = item_rows((1.0, 0.0, 0.5), (0.25, 0.5, 0.75))
    stored = replace(written[0], images=(ImageRef(Path("b, c.png"), None, False),))
    odd = replace(stored, id="odd", captions=('a "quoted", red</script>', "two\nlines é"))
    other = ItemRow("classes/0", "classes", 1.0)
    query = replace(written[2], id="query", rank=7)
    write_items(tmp_path / f"items{suffix}", [*written, odd, query, other])
    read = read_items(tmp_path / f"items{suffix}")
    assert read == {"cola": (*written, odd, query), "classes": (other,)}


def test_a_line_of_json_has_the_columns(item_rows, tmp_path):
    write_items(tmp_path / "items.jsonl", item_rows((1.0, 0.0, 0.5), (0.25, 0.5, 0.75)))
    lines = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "benchmark": "cola",
        "id": "cola/1",
        "right": False,
        "outcome": 0.0,
        "files": [str(tmp_path / "a.png")],
        "captions": ["right 1", "wrong 1"],
        "true": [[True, False]],
        "scores": [[0.5, None]],
        "boxes": [[2, 2, 4, 4]],
    }
    assert "right" not in lines[2]  # neither right nor wrong


def test_parquet_has_typed_columns(item_rows, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    write_items(tmp_path / "items.parquet", item_rows((1.0, 0.0), (0.25, 0.5)))
    schema = parquet.read_schema(tmp_path / "items.parquet")
    types = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    assert types["scores"] == "list<element: list<element: double>>"
    assert types["right"] == "bool"
    assert parquet.read_table(tmp_path / "items.parquet")["right"].to_pylist() == [True, False]


def test_a_file_of_another_tool_needs_few_columns(tmp_path):
    """As pandas writes: True and False, an unknown column, one list of scores for one file."""
    (tmp_path / "theirs.csv").write_text(
        "id,benchmark,right,files,captions,true,scores,note\n"
        '7,cola,True,"[""a.png""]","[""x"", ""y""]","[true, false]","[0.5, 0.25]",n\n'
        "8,cola,False,,,,,\n"
    )
    first, second = read_items(tmp_path / "theirs.csv")["cola"]
    assert (first.id, first.outcome, first.captions) == ("7", 1.0, ("x", "y"))
    assert (first.true, first.scores) == (((True, False),), ((0.5, 0.25),))
    assert second == ItemRow("8", "cola", 0.0)
    scores = [float("nan"), 0.5, float("-inf")]
    cells = {"files": ["a.png"], "captions": list("xyz"), "true": [True, False, False]}
    (tmp_path / "theirs.jsonl").write_text(line(**cells, scores=scores, outcome=-0.5))
    (row,) = read_items(tmp_path / "theirs.jsonl")["b"]
    assert (row.scores, row.outcome) == (((None, 0.5, None),), -0.5)  # an outcome may be a cosine


def test_parquet_without_pyarrow_is_refused(monkeypatch, tmp_path):
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with refused("expected the package pyarrow .* pip install pyarrow, or name a .csv"):
        check_format(tmp_path / "items.parquet")
    with refused("expected a file of items that ends in .jsonl, .csv, .parquet"):
        check_format(tmp_path / "items.txt")


def line(**cells):
    return json.dumps({"benchmark": "b", "id": 1, "right": True} | cells) + "\n"


ONE = {"files": ["a"], "captions": ["x"], "true": [[True]]}
WRONG = [
    ("[1]\n", "line 1 of .*a.jsonl, got .\\[1\\]. instead of an object"),
    ("{}\n", "got nothing at benchmark"),
    (line() + '{"benchmark": "b"}\n', "line 2 of .*got nothing at id"),
    ('{"benchmark": "b", "id": 1}\n', "neither a cell 'outcome' nor 'right'"),
    (line(outcome=2), "got 2 at outcome"),
    (line(**ONE | {"captions": ["x", "y"]}), "true that are not 1 lists of 2 values"),
    (line(**ONE, scores=[["0.5"]]), "got '0.5' at scores/0/0"),
    (line(files=["a"], boxes=[None, None]), "ValueError"),
]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        *(("a.jsonl", text, reason) for text, reason in WRONG),
        ("a.csv", "benchmark,id,right\nb,1,true,9\n", "4 cells for 3 columns"),
        ("a.csv", "benchmark,id,right,captions\nb,1,true,a dog\n", "JSONDecodeError"),
    ],
)
def test_other_files_are_refused(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with refused(f"items as vlmtune evaluate --items writes them.*{reason}"):
        read_items(tmp_path / name)


def test_the_newest_items_are_those_of_a_run(tmp_path):
    report = tmp_path / "report.json"
    assert items_beside(report) is None
    for age, name in enumerate(("items.csv", "items.jsonl", "other.csv")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert items_beside(report) == tmp_path / "items.csv"
