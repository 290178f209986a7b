import json
import random

import pytest
from PIL import Image

from tests.refusals import refused
from vlmtune.benchmarks.files import pixel_box, read_csv, read_rows
from vlmtune.storage.files import read_json


def test_the_size_pil_crops():
    rng, image = random.Random(0), Image.new("RGB", (20, 20))
    for _ in range(200):
        x, y = rng.uniform(-3, 15), rng.uniform(-3, 15)
        width, height = rng.uniform(1, 9), rng.uniform(1, 9)
        crop = image.crop((x, y, x + width, y + height))
        left, top, wide, high = pixel_box(x, y, width, height)
        assert (wide, high) == crop.size
        assert (left, top) == (round(x), round(y))


@pytest.mark.parametrize(
    "box",
    [(0, 0, 5, -1), (0, 0, "wide", 5), (0, 0, None, 5), (0, 0, float("inf"), 5), ("nan", 0, 3, 5)],
)
def test_what_is_no_box_raises(box):
    with pytest.raises((ValueError, TypeError, OverflowError), match=r"area|number|convert"):
        pixel_box(*box)


def write(folder, text, encoding="utf-8"):
    path = folder / "labels.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_columns_are_found_by_name_whatever_stands_beside_them(tmp_path):
    path = write(tmp_path, '﻿,b,extra,a\r\n0,2,"x, y",1\r\n1,4,,3\r\n')
    rows = [(row["a"], row["b"]) for row in read_csv(path, ("a", "b"), "x")]
    assert rows == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize(
    ("text", "came"),
    [
        ("a,c\n1,2\n", "no b"),
        ("a,b\n1,2\n3\n", "row 1 with fewer"),
        ("", "no a"),
        ('a,b\n1,"2\n', "Error"),
    ],
)
def test_what_is_no_such_csv_is_one_line(tmp_path, text, came):
    with refused(came):
        read_csv(write(tmp_path, text), ("a", "b"), "example.org")


def test_a_missing_or_binary_file_is_one_line(tmp_path):
    with refused(r"get the file from example\.org"):
        read_csv(tmp_path / "none.csv", ("a",), "example.org")
    (tmp_path / "binary.csv").write_bytes(b"a\n\xff\xfe\n")
    with refused("UnicodeDecodeError"):
        read_csv(tmp_path / "binary.csv", ("a",), "example.org")


def test_rows_of_a_list_an_object_or_lines(tmp_path):
    rows = [{"id": 0, "text": "a"}, {"id": 1, "text": "b"}]
    for name, content in (
        ("list.json", json.dumps(rows)),
        ("object.json", json.dumps({"7": rows[0], "9": rows[1]})),
        # A line separator within a text ends no line.
        ("lines.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"),
    ):
        for encoding in ("utf-8", "utf-8-sig"):  # editors of Windows write a mark
            (tmp_path / name).write_text(content, encoding=encoding)
            assert read_rows(tmp_path / name, ["text"], "example.org") == rows
    assert read_json(tmp_path / "list.json", "rows") == rows
    separated = [{"text": "a\u2028b"}]
    (tmp_path / "lines.jsonl").write_text(json.dumps(separated[0], ensure_ascii=False))
    assert read_rows(tmp_path / "lines.jsonl", ["text"], "x") == separated


@pytest.mark.parametrize(
    "text", ["{", "3", "[]", "{}", "[3]", '[{"text": " "}]', '{"9": {"t": 1}}']
)
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_rows_without_a_text_are_one_line(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with refused(r"expected rows with text.*get the file from x"):
        read_rows(tmp_path / name, ["text"], "x")
