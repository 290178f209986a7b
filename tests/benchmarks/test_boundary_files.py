import pytest
from PIL import Image

from tests.benchmarks.json_files import write
from tests.refusals import refused
from vlmtune.benchmarks.boundary_files import CaptionedBoundary, read_boundaries, read_frames


def row_of(**more):
    row = {"timestamp": 2, "subject": "a man", "status_before": "sits", "status_after": "stands"}
    return row | more


def extract(folder, names):
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (2, 2)).save(folder / name)


def test_reads_times_and_words_captions(tmp_path):
    path = write(tmp_path, {"v": [row_of(), row_of(subject=" ", action_of_cause="x")], "w": []})
    assert read_boundaries(path) == [
        CaptionedBoundary("v", 2.0, "a man sits", "a man stands"),
        CaptionedBoundary("v", 2.0, "sits", "stands"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"v": [3]},
        {"v": [row_of(timestamp=None)]},
        {"v": [row_of(timestamp=True)]},
        {"v": [row_of(timestamp=-1)]},
        {"v": [row_of(status_before=None)]},
        {"v": [row_of(subject="", status_after=" ")]},
    ],
)
def test_malformed_annotations(tmp_path, content):
    with refused(r"expected JSON `\{video"):
        read_boundaries(write(tmp_path, content))


def test_frames_are_in_the_order_of_their_numbers(tmp_path):
    extract(tmp_path / "v", [f"frame_{k}.jpg" for k in range(8, 12)])
    (tmp_path / "v" / "notes.txt").write_text("no frame")
    query = CaptionedBoundary("v", 0.5, "a", "b")
    (own,) = read_frames(tmp_path, [query, query], 5.0, "somewhere").values()
    assert [frame.path.stem for frame in own] == [f"frame_{k}" for k in range(8, 12)]


@pytest.mark.parametrize(
    "names", [["1.jpg", "3.jpg"], ["1.jpg", "1.png"], ["1.jpg", "b.jpg"], ["1.jpg", "01.jpg"]]
)
def test_gaps_between_frames(tmp_path, names):
    extract(tmp_path / "v", names)
    with refused("numbered without gaps"):
        read_frames(tmp_path, [CaptionedBoundary("v", 0.1, "a", "b")], 5.0, "somewhere")


def test_videos_without_frames_or_with_too_few_for_their_boundary(tmp_path):
    extract(tmp_path / "v", [f"{k}.jpg" for k in range(10)])
    queries = [CaptionedBoundary(name, 0.1, "a", "b") for name in "vwx"]
    with refused(r"3 videos .* 2 have fewer than two, first 'w'"):
        read_frames(tmp_path, queries, 5.0, "somewhere")
    with refused(r"its boundary at 9 s, got 10, which at 5 a second end at"):
        read_frames(tmp_path, [CaptionedBoundary("v", 9.0, "a", "b")], 5.0, "somewhere")
    assert read_frames(tmp_path, [CaptionedBoundary("v", 9.0, "a", "b")], 1.0, "somewhere")
