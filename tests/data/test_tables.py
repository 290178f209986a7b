import json
import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from vlmtune.data.table_rows import Table
from vlmtune.data.tables import column_names, numbered_rows, read_cells, source_files

ROWS = [{"image": "a.jpg", "caption": "a dog"}, {"image": "b/c.jpg", "caption": "a, b\nand c"}]


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


TEXTS = {
    "t.csv": 'image,caption\na.jpg,a dog\n\nb/c.jpg,"a, b\nand c"\n',
    "t.CSV": '\ufeffimage,caption\r\na.jpg,a dog\r\nb/c.jpg,"a, b\nand c"\r\n',
    "excel.csv": '\ufeffimage;caption\na.jpg;a dog\nb/c.jpg;"a, b\nand c"\n',
    "tabs.csv": 'image\tcaption\na.jpg\ta dog\nb/c.jpg\t"a, b\nand c"\n',
    "bars.csv": 'image|caption\na.jpg|a dog\nb/c.jpg|"a, b\nand c"\n',
    "t.tsv": 'image\tcaption\na.jpg\ta dog\nb/c.jpg\t"a, b\nand c"\n',
    "t.jsonl": "\n\n".join(map(json.dumps, ROWS)),
    "t.json": json.dumps(ROWS),
    "u.json": json.dumps(dict(enumerate(ROWS))),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_formats_hold_the_same_rows(name, tmp_path):
    path = written(tmp_path / name, TEXTS[name])
    assert list(read_cells(path)) == ROWS
    assert column_names(path) == ["image", "caption"]
    assert source_files(path) == [path]


def test_columns_of_json_are_those_of_all_rows(tmp_path):
    path = written(tmp_path / "t.jsonl", '{"a": 1}\n{"b": 2, "a": 3}\n')
    assert column_names(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n1\n", "1 cells for 2 columns in line 3"),
        ("t.csv", "a,b\n1,2,3\n", "3 cells for 2 columns in line 2"),
        ("t.csv", "a,a\n1,2\n", "different columns .*: rename one"),
        ("t.jsonl", "{}\n{", "in line 2"),
        ("t.jsonl", "{}\n[1]", r"'\[1\]' instead of an object in line 2"),
        ("t.json", '{"images": [], "annotations": []}', "vlmtune build coco"),
        ("t.json", "3", "another layout"),
        ("t.xls", "", r"expected a table \(.csv, .tsv"),
    ],
)
def test_a_file_of_another_layout_is_one_line(name, text, message, tmp_path):
    with refused(message):
        list(read_cells(written(tmp_path / name, text)))


def test_empty_rows_and_columns_of_a_spreadsheet_are_left_out(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("image,caption,,\na.jpg,a dog,,\n,,,\nb.jpg,a cat,,\n")
    rows = list(numbered_rows(path))
    assert [position for position, _ in rows] == ["line 2", "line 4"]
    assert [cells["caption"] for _, cells in rows] == ["a dog", "a cat"]


def test_a_row_is_at_the_line_where_it_begins(tmp_path):
    text = 'image,caption\n\na.jpg,"two\n\nlines"\nb.jpg,a,b\nc.jpg,c\n'
    path = written(tmp_path / "t.csv", text)
    assert list(numbered_rows(path)) == [
        ("line 3", {"image": "a.jpg", "caption": "two\n\nlines"}),
        ("line 6", "3 cells for 2 columns"),
        ("line 7", {"image": "c.jpg", "caption": "c"}),
    ]
    bad = []
    rows = list(Table(path).rows(lambda where, wrong: bad.append((where, wrong))))
    assert [row.where for row in rows] == [f"line {n} of {path}" for n in (3, 7)]
    assert bad == [(f"line 6 of {path}", "3 cells for 2 columns")]
    with refused("an image in line 6 of .*, got 3 cells for 2 columns"):
        list(Table(path).rows())


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_of_another_encoding_is_saved_again(encoding, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("image,caption\na.jpg,ein Kätzchen\n", encoding=encoding)
    with refused("UnicodeDecodeError.*: save it as UTF-8, or name another"):
        list(read_cells(path))


def test_a_folder_of_images_with_text_beside_them(tmp_path):
    for name in ("train/a.jpg", "train/b.png", "val/c.webp", "d.jpeg"):
        written(tmp_path / name, "")
    written(tmp_path / "train/a.txt", "a dog\na brown dog\n")
    written(tmp_path / "train/b.json", '{"captions": ["a cat"], "negative": "a dog"}')
    written(tmp_path / "d.txt", "a bird")
    assert list(read_cells(tmp_path)) == [
        {"image": "d.jpeg", "caption": ["a bird"]},
        {"image": "train/a.jpg", "caption": ["a dog", "a brown dog"], "split": "train"},
        {"image": "train/b.png", "captions": ["a cat"], "negative": "a dog", "split": "train"},
        {"image": "val/c.webp", "split": "val"},
    ]
    rows = [(row.name, row.captions, row.negatives) for row in Table(tmp_path).rows()]
    assert rows[:3] == [
        ("d.jpeg", ("a bird",), ()),
        ("train/a.jpg", ("a dog", "a brown dog"), ()),
        ("train/b.png", ("a cat",), ("a dog",)),
    ]
    (tmp_path / "empty").mkdir()
    with refused("expected images"):
        list(read_cells(tmp_path / "empty"))


def test_parquet_and_saved_datasets(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"image": {"bytes": b"1", "path": "1.jpg"}, "caption": ["a", "b"]},
        {"image": {"bytes": None, "path": "2.jpg"}, "caption": []},
    ]
    table = arrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "t.parquet")
    assert list(read_cells(tmp_path / "t.parquet")) == rows
    names = ("data/{}-00000-of-00001.parquet", "{}.parquet", "default/{}/0000.parquet")
    for number, name in enumerate(names):
        for split in ("train", "test"):
            file = tmp_path / f"hub{number}" / name.format(split)
            file.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(table, file)
        want = [{"split": split, **row} for split in ("test", "train") for row in rows]
        assert list(read_cells(tmp_path / f"hub{number}")) == want
    saved = tmp_path / "saved"
    for split in ("train", "test"):
        (saved / split).mkdir(parents=True)
        with arrow.ipc.new_stream(saved / split / "data-00000-of-00001.arrow", table.schema) as out:
            out.write_table(table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        written(saved / split / "state.json", json.dumps(state))
    assert list(read_cells(saved / "train")) == rows
    written(saved / "dataset_dict.json", '{"splits": ["train", "test"]}')
    assert list(read_cells(saved)) == [
        {"split": split, **row} for split in ("train", "test") for row in rows
    ]
    assert [(row.image, row.name) for row in Table(saved / "train").rows()] == [
        (b"1", "1.jpg"),
        (saved / "train/2.jpg", "2.jpg"),
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dataset_dict.json", '{"splits": ["."]}'),
        ("dataset_dict.json", '{"splits": ["../saved"]}'),
        ("state.json", '{"_data_files": [{"filename": "../../a.arrow"}]}'),
        ("state.json", '{"_data_files": [{"filename": "none.arrow"}]}'),
    ],
)
def test_a_damaged_saved_dataset_is_one_line(name, content, tmp_path):
    path = written(tmp_path / "saved" / name, content)
    with refused(f"in {tmp_path / 'saved'}.*, got "):
        list(numbered_rows(path.parent))


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    for module in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with refused("expected the package pyarrow .* pip install pyarrow"):
        list(read_cells(written(tmp_path / "t.parquet", "")))


@pytest.mark.parametrize("form", ["new_stream", "new_file"])
def test_both_forms_of_arrow_are_read(tmp_path, form):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    ipc = pytest.importorskip("pyarrow.ipc")
    rows = [{"image": "a.png", "caption": "a dog"}, {"image": "b.png", "caption": "a cat"}]
    table = arrow.Table.from_pylist(rows)
    with getattr(ipc, form)(str(tmp_path / "rows.arrow"), table.schema) as out:
        out.write_table(table)
    assert list(read_cells(tmp_path / "rows.arrow")) == rows


def test_offsets_outside_an_arrow_file_are_an_error(tmp_path):
    """Without a check the reader follows them out of the file, which ends the process."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = tmp_path / "rows.arrow"
    table = arrow.Table.from_pylist([{"image": "a.png", "caption": "a dog"}] * 2)
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 5, 10))
    wrong = b"".join(n.to_bytes(4, "little", signed=True) for n in (0, -5, 2**30))
    content = path.read_bytes()
    assert offsets in content
    path.write_bytes(content.replace(offsets, wrong))
    with refused("expected a table in .*rows.arrow, got "):
        list(numbered_rows(path))
