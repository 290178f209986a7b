import json
from pathlib import Path

import pytest

from tests.refusals import refused
from vlmtune.data.table_rows import Table
from vlmtune.data.tables import column_names


def table(folder: Path, *rows: dict, **options) -> Table:
    path = folder / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return Table(path, **options)


GUESSED = [
    ("image caption", "image: image, caption: caption"),
    ("File_Name Sentences", "image: File_Name, caption: Sentences"),
    ("filename filepath text", "image: filepath, caption: text"),
    ("path caption text", "image: path, caption: caption"),
    ("image captions caption", "image: image, caption: captions caption"),
    ("image caption_1 caption_0", "image: image, caption: caption_1 caption_0"),
    ("image caption hard_negative_caption",
     "image: image, caption: caption, negative: hard_negative_caption"),
    ("image caption negative image-neg id split",
     "image: image, caption: caption, negative: negative, negative_image: image-neg, id: id, "
     "split: split"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "taken"), GUESSED)
def test_guesses(names, taken, tmp_path):
    listed = names.split()
    columns = table(tmp_path, dict.fromkeys(listed, "x")).columns
    assert ", ".join(f"{role}: {' '.join(x)}" for role, x in columns.items() if x) == taken


def test_a_given_column_is_not_guessed_for_anything_else(tmp_path):
    row = {"image_1": "a.jpg", "image_2": "b.jpg", "caption": "a", "text": "b", "id": 3}
    given = {"image": "image_1", "negative_image": "image_2", "negative": ["caption"], "id": None}
    rows = table(tmp_path, row, given=given)
    (read,) = rows.rows()
    assert (read.name, read.negative_name) == ("a.jpg", "b.jpg")
    assert (read.captions, read.negatives, read.id) == (("b",), ("a",), "")
    assert rows.summary() == (
        "t.jsonl: image from 'image_1', caption from 'text', negative from 'caption', "
        "negative_image from 'image_2'; not used: 'id'"
    )
    row = {"image": "a.jpg", "caption": "a", "false_captoin": "b", "image_width": 3, "splits": "c"}
    summary = table(tmp_path, row, given={"split": None}).summary()
    unused = "'false_captoin' (did you mean 'false_caption'?), 'image_width', 'splits'"
    assert summary.endswith(f"; not used: {unused}")


@pytest.mark.parametrize(
    ("cell", "captions"),
    [
        ("a  dog\n", ("a dog",)),
        (["a dog", "a dog", " a cat"], ("a dog", "a cat")),
        ('["a dog", "a cat"]', ("a dog", "a cat")),
        ("['a dog', \"it's\"]", ("a dog", "it's")),
        ("[blurred] a dog", ("[blurred] a dog",)),
        ([{"raw": "a dog", "tokens": ["a"]}, {"text": "a cat"}], ("a dog", "a cat")),
        (None, ()),
        ("", ()),
        (float("nan"), ()),
    ],
)
def test_cells_of_captions(cell, captions, tmp_path):
    (row,) = table(tmp_path, {"image": "a.jpg", "caption": cell}).rows()
    assert row.captions == captions


def test_a_cell_that_is_no_number_is_empty(tmp_path):
    """As `json.dumps` writes the empty cells of pandas."""
    empty = dict.fromkeys(("negative", "negative_image", "id", "split"), float("nan"))
    (row,) = table(tmp_path, {"image": "a.jpg", "caption": "a dog", **empty}).rows()
    assert (row.negatives, row.negative_image, row.id, row.split) == ((), None, "", "")


def test_names_start_from_the_table_or_the_images(tmp_path, monkeypatch):
    row = {"image": "sub/a.jpg", "caption": "a"}
    (read,) = table(tmp_path, row).rows()
    assert read.image == tmp_path / "sub/a.jpg"
    (read,) = table(tmp_path, row, images=tmp_path / "x").rows()
    assert read.image == tmp_path / "x/sub/a.jpg"
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "sub/a.jpg"), "sub\\a.jpg", ".\\sub\\a.jpg", "~/sub/a.jpg"):
        inside = {"image": name, "caption": "a"}
        assert next(table(tmp_path, inside).rows()).image == tmp_path / "sub/a.jpg"
    assert next(table(tmp_path, inside, images=Path("~")).rows()).image == tmp_path / "sub/a.jpg"
    for name in ("C:\\work\\SUB\\x\\a.jpg", "\\\\host\\disk\\sub\\x\\a.jpg"):  # this is its copy
        of_windows = {"image": name, "caption": "a"}
        (read,) = table(tmp_path, of_windows, images=tmp_path / "sub").rows()
        assert read.image == tmp_path / "sub/x/a.jpg"
    (tmp_path / "sub\\b.jpg").touch()  # a name with a backslash is one here
    inside = {"image": "sub\\b.jpg", "caption": "a"}
    assert next(table(tmp_path, inside).rows()).image == tmp_path / "sub\\b.jpg"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "../a.jpg"}, r"inside .* line 2 of .*jsonl, column 'image', got '../a.jpg'"),
        ({"image": "/etc/a.jpg"}, "set `images` to the folder of images"),
        (
            {"image": "C:\\photos\\a.jpg"},
            r"inside .*, got 'C:.*': set `images` .* copy of C:\\photos",
        ),
        ({"image": "https://x.org/a.jpg"}, "line 2 .*'https://x.org/a.jpg': download the images"),
        ({"image": ""}, "expected an image in line 2 of .*, got no image"),
        ({"image": float("nan")}, "expected an image in line 2 of .*, got no image"),
        ({"image": 3}, "line 2 .*'image', got 3"),
        ({"image": "a dog " * 50}, "an image file or encoded image in line 2 .*, got 'a dog a dog"),
        ({"caption": 3}, "a caption or a list of captions in line 2 .*'caption', got 3"),
        ({"caption": [["a"], 3]}, "got 3"),
        ({"id": {"a": 1}}, "a name or a number in line 2 .*'id'"),
        ({"negative": "A dog."}, "false caption in line 2 .*'negative', got 'A dog.'"),
        ({"negative": "a dog", "id": 7}, "false caption in line 2 .*'negative', got 'a dog'.*'7'"),
    ],
)
def test_a_wrong_cell_names_its_row_and_column(row, message, tmp_path):
    good = {"image": "a.jpg", "caption": "a dog"}
    with refused(message):
        list(table(tmp_path, good, {**good, **row}).rows())


WRONG = [
    ({"url": "x", "caption": "a"}, {}, "got the columns url, caption: download the images"),
    ({"a": "x", "caption": "a"}, {}, "a column of images .* the columns a, caption: name it"),
    ({"image": "x", "b": "a"}, {}, "a column of captions .*: name it by `columns.caption`"),
    ({"image": "x", "captoin": "a", "false_caption": "b"}, {},
     "false_caption: rename captoin to caption, or name it by `columns.caption`"),
    ({"image": "x", "caption": "a"}, {"imge": "image"},
     "no table has: name one of image, caption"),
    ({"image": "x", "caption": "a"}, {"caption": "captoin"}, "did you mean 'caption'"),
    ({"image": "x", "caption": "a"}, {"image": ["image", "caption"]},
     "for image, got image, caption: name one"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "given", "message"), WRONG)
def test_wrong_columns(row, given, message, tmp_path):
    with refused(message):
        _ = table(tmp_path, row, given=given).columns


def test_tables_without_captions_or_rows(tmp_path):
    (tmp_path / "a.png").touch()
    with refused("expected a column of captions .*: write captions beside the images"):
        _ = Table(tmp_path).columns
    with refused("expected rows in .*, got none: write one for each image"):
        _ = table(tmp_path).columns
    spaced = tmp_path / "spaced.csv"
    spaced.write_text("# my pictures\nimage,caption\na.png,a dog\n")
    with refused("expected a table in .*, got 2 cells for 1 columns in line 2: mend the row"):
        _ = Table(spaced).columns


def test_the_names_of_columns_are_read_once(tmp_path, monkeypatch):
    made, reads = table(tmp_path, {"image": "a.jpg", "caption": "a dog"}), []

    def read(path):
        reads.append(path)
        return column_names(path)

    monkeypatch.setattr("vlmtune.data.table_rows.column_names", read)
    assert "image from 'image'" in made.summary()
    assert len(list(made.rows())) == len(reads) == 1
