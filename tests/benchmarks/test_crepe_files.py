import pytest

from tests.benchmarks.json_files import touch
from tests.refusals import refused
from vlmtune.benchmarks.crepe_files import read_regions, read_texts

HEADER = "image_id,caption,x,y,width,height,negs"
ROW = "13,computer on floor,237.0,391.0,402.0,208.0,\"['a', 'b']\""


def read(folder, text):
    path = folder / "file.csv"
    path.write_text(text, encoding="utf-8")
    return read_regions(path, str(folder), "negs")


@pytest.mark.parametrize(
    "value",
    ["", "a b", "('a', 'b')", "{'a': 1}", "[1, 2]", "[__import__('os')]", "[" * 2000, "['a'"],
)
def test_what_is_no_list_raises(value):
    with pytest.raises((ValueError, SyntaxError)):
        read_texts(value)


def test_rows_with_images_in_either_folder(tmp_path):
    touch(tmp_path, "VG_100K/1.jpg", "VG_100K_2/2.jpg")
    row = "{},a,-3,0,9.0,2,[]"
    regions = read(tmp_path, "\n".join([HEADER, *(row.format(number) for number in (1, 2, 3))]))
    places = ((1, "VG_100K"), (2, "VG_100K_2"), (3, "VG_100K"))
    for (_, image, _), (number, folder) in zip(regions, places, strict=True):
        assert image.path == tmp_path / folder / f"{number}.jpg"
        assert image.box == (-3, 0, 9, 2)
    ((row, image, negatives),) = read(tmp_path, f"{HEADER}\n{ROW}\n")
    assert row["caption"] == "computer on floor"
    assert image.box == (237, 391, 402, 208)
    assert negatives == ("a", "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image_id,caption\n1,2\n", "no x"),
        (f"{HEADER.removesuffix(',negs')}\n", "no negs"),
        (f"{HEADER}\n{ROW.replace('402.0', '0')}\n", "no area"),
        (f"{HEADER}\n{ROW.replace('[', '(')}\n", "list of captions"),
    ],
)
def test_malformed(tmp_path, content, message):
    with refused(message):
        read(tmp_path, content)
