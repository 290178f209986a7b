from pathlib import Path

import pytest

from data_builders.corpora.ar4t import AR4TBuilder
from tests.data_builders.pictures import JPEG
from tests.refusals import refused
from vlmtune.benchmarks.files import write_csv

COLUMNS = ["caption", "alt_caption", "filename", "filename_neg", "filepath"]


def table(folder: Path, rows: list[list[str]], columns: list[str] = COLUMNS) -> Path:
    path = Path(write_csv(folder / "ar4t.csv", columns, rows))
    for row in rows:
        image = folder / row[-1]
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(JPEG)
    return path


def groups(path: Path, **arguments) -> list:
    return [group for group, _ in AR4TBuilder(path, path.parent, **arguments).records()]


def test_rows_without_negative_and_one_sided_ones(tmp_path):
    path = table(
        tmp_path,
        [
            ["cat at museum", "", "1.jpg", "", "u/1.jpg"],
            ["b above a", "nan", "2.jpg", "nan", "u/2.jpg"],  # named by the next row alone
            ["a above b", "b below a", "3.jpg", "2.jpg", "u/3.jpg"],
            ["dog in barn", "", "4.jpg", "gone.jpg", "u/4.jpg"],
        ],
    )
    builder = AR4TBuilder(path, tmp_path)
    built, files = zip(*builder.checked_records(), strict=True)
    assert [g.image_ids for g in built] == [("u/3.jpg", "u/2.jpg"), ("u/1.jpg",), ("u/4.jpg",)]
    assert [*files[0]] == [tmp_path / "u/3.jpg", tmp_path / "u/2.jpg"]
    assert (builder.counts["pairs"], builder.counts["without negative"]) == (1, 2)
    assert built[0].texts == ("a above b", "b below a", "b above a")
    assert built[0].true_ids == (frozenset(built[0].texts[:2]), frozenset(built[0].texts[2:]))
    assert built[0].truth.tolist() == [[True, True, False], [False, False, True]]
    assert built[1].truth.tolist() == [[True]]


def test_equal_file_names_in_two_folders(tmp_path):
    path = table(
        tmp_path,
        [
            ["p", "", "1.jpg", "2.jpg", "x/1.jpg"],
            ["q", "", "2.jpg", "1.jpg", "x/2.jpg"],
            ["r", "", "1.jpg", "2.jpg", "y/1.jpg"],
            ["s", "", "2.jpg", "1.jpg", "y/2.jpg"],
            ["t", "", "3.jpg", "2.jpg", "z/3.jpg"],  # which of the two is meant is unknown
        ],
    )
    assert [set(g.image_ids) for g in groups(path)] == [
        {"x/1.jpg", "x/2.jpg"},
        {"y/1.jpg", "y/2.jpg"},
        {"z/3.jpg"},
    ]


def test_a_caption_of_both_is_true_of_both(tmp_path):
    path = table(tmp_path, [["p", "", "1", "2", "1.jpg"], ["p", "q", "2", "1", "2.jpg"]])
    path.write_text(path.read_text().replace("p,,1,2", "p,,1,2.jpg"))
    (group,) = groups(path)
    assert group.truth.tolist() == [[True, False], [True, True]]


def test_a_csv_without_its_columns_is_refused(tmp_path):
    path = table(tmp_path, [["p", "1.jpg"]], ["caption", "filepath"])
    with refused("alt_caption"):
        groups(path)
    path = table(tmp_path, [["p", "", "1.jpg", "", "u/1.jpg"]])
    assert len(groups(path, subset="pairs")) == 0
    with refused("Actor1Attribute"):
        groups(path, subset="relations")


def test_files_outside_the_images_folder_are_refused(tmp_path):
    path = table(tmp_path, [["p", "", "1.jpg", "", "u/1.jpg"], ["q", "", "2", "", "u/../../2.jpg"]])
    message = rf"expected image files inside {tmp_path}, .*row 2 of {path} is 'u/\.\./\.\./2\.jpg'"
    with refused(message):
        groups(path)


FULL = [*COLUMNS[:2], "Relation", "Actor1Attribute", "Actor2Attribute", *COLUMNS[2:]]
SCENES = [  # two pairs, of a relation and of attributes, and a scene of each kind without negative
    ["a left of b", "b right of a", "left", "", "nan", "1.jpg", "2.jpg", "u/1.jpg"],
    ["a right of b", "b left of a", "right", "", "", "2.jpg", "1.jpg", "u/2.jpg"],
    ["red a and big b", "big b and red a", "on", "Red", "Big", "3.jpg", "4.jpg", "u/3.jpg"],
    ["big a and red b", "red b and big a", "on", "Big", "Red", "4.jpg", "3.jpg", "u/4.jpg"],
    ["a in barn", "", "in", "", "", "5.jpg", "", "u/5.jpg"],
    ["red a in barn", "", "in", "Red", "", "6.jpg", "", "u/6.jpg"],
]


@pytest.mark.parametrize(
    ("subset", "files"),
    [
        (None, "12 34 5 6"),
        ("relations", "12 5"),
        ("attributes", "34 6"),
        ("pairs", "12 34"),
        ("relation_pairs", "12"),
        ("attribute_pairs", "34"),
    ],
)
def test_a_subset_is_of_one_kind_or_of_pairs(tmp_path, subset, files):
    builder = AR4TBuilder(table(tmp_path, SCENES, FULL), tmp_path, subset=subset)
    built = [group for group, _ in builder.records()]
    assert [group.image_ids for group in built] == [
        tuple(f"u/{digit}.jpg" for digit in digits) for digits in files.split()
    ]
    counts = builder.counts
    images = files.replace(" ", "")
    assert counts["relations"] == sum(digit in "125" for digit in images)
    assert counts["attributes"] == sum(digit in "346" for digit in images)
    skipped = counts["skipped: not in the subset"] + counts["skipped: no negative"]
    assert skipped == len(SCENES) - len(images)
