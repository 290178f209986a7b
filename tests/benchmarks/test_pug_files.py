import pytest

from vlmtune.benchmarks.pug_files import check_options, drawn, read_rows, spoken
from vlmtune.errors import UserError


def write(folder, text, encoding="utf-8"):
    path = folder / "labels.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_columns_are_found_by_name_whatever_stands_beside_them(tmp_path):
    path = write(tmp_path, '﻿,b,extra,a\r\n0,2,"x, y",1\r\n1,4,,3\r\n')
    assert read_rows(path, ("a", "b")) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize(
    ("text", "came"),
    [
        ("a,c\n1,2\n", "got no b"),
        ("a,b\n1,2\n3\n", "got row 1 without"),
        ("a,b\n", "got no row"),
        ("", "got no a, b"),
        ('a,b\n1,"2\n', "got Error"),
    ],
)
def test_what_is_no_such_csv_is_one_line(tmp_path, text, came):
    with pytest.raises(UserError, match=came) as error:
        read_rows(write(tmp_path, text), ("a", "b"))
    assert "\n" not in str(error.value)


def test_a_missing_or_binary_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"pug\.metademolab\.com"):
        read_rows(tmp_path / "none.csv", ("a",))
    (tmp_path / "binary.csv").write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(UserError, match="UnicodeDecodeError"):
        read_rows(tmp_path / "binary.csv", ("a",))


def test_names_become_words():
    names = {"SciFiCity": "sci fi city", "Cofee_Mug": "cofee mug", "Power-drill": "power-drill"}
    assert {name: spoken(name) for name in names} == names


def test_a_draw_is_repeatable_ordered_and_without_replacement():
    one = drawn(50, 20, 3)
    assert one == drawn(50, 20, 3) == sorted(set(one))
    assert one != drawn(50, 20, 4)
    assert drawn(5, 9, 0) == [0, 1, 2, 3, 4]


def test_options_are_checked():
    with pytest.raises(UserError, match="got 'strikt'"):
        check_options("strikt", None)
    with pytest.raises(UserError, match="got 0"):
        check_options("strict", 0)
