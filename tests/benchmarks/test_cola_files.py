from pathlib import Path

import pytest

from tests.benchmarks.json_files import raw_of, touch, write
from tests.refusals import refused
from vlmtune.benchmarks.cola_files import read_queries, read_subsets, spelled
from vlmtune.benchmarks.cola_single import ColaSingle


def test_what_a_file_says(tmp_path, fixture):
    raw = raw_of(fixture)
    queries = read_queries(Path(fixture.path), tmp_path)
    assert queries.texts == ("red cube", "blue cube", "red cone")
    assert queries.labels.int().tolist() == [entry[2] for entry in raw["data"]]
    assert queries.hard.int().tolist() == [entry[3] for entry in raw["data"]]
    assert queries.attributes.tolist() == [1, 1, 1]
    # a red cube and a blue cone have the words of all three queries
    assert queries.every is not None
    assert queries.every.int().tolist()[:3] == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert queries.of([2, 0]).images == (queries.images[2], queries.images[0])
    assert queries.of([5]).ranked.tolist() == [[False] * 3]


def test_an_object_of_two_words_is_one_word_where_the_file_has_its_borders(tmp_path, fixture):
    raw = raw_of(fixture)
    raw["labels"][0] = [["red"], "table cloth"]
    raw["data"][0][1] = [[["red"], "table"], [[], "cloth"]]
    queries = read_queries(write(tmp_path, raw), tmp_path)
    assert queries.every is not None
    assert not queries.every[0, 0]
    raw["labels"][0] = "red table cloth"
    queries = read_queries(write(tmp_path, raw), tmp_path)
    assert queries.every is not None
    assert queries.every[0, 0]


def test_names_that_are_words_stay_as_they_are():
    assert spelled(["red cube", "dining table", "(box)"]) == ("red cube", "dining table", "(box)")
    assert spelled(["pan_(for_cooking)", "trash_can"]) == ("pan", "trash can")
    assert spelled(["a_b(x)", "a b"]) == ("a b(x)", "a b")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("{}.png", "{}.png"),  # GQA
        ("https://example.org/data/vg_gqa_images/{}.png?x=1", "{}.png"),
        ("/home/someone/CLEVR_CoGenT_v1.0/images/valA/{}.png", "valA/{}.png"),
        ("valB/{}.png", "valB/{}.png"),
        ("../coco/val2017/{}.png", "val2017/{}.png"),  # PACO
        ("images/val2017/{}.png", "images/val2017/{}.png"),
        ("elsewhere/{}.png", "{}.png"),
        ("what#is{}.png", "what#is{}.png"),
    ],
)
def test_an_image_is_the_longest_end_of_its_path_that_is_there(tmp_path, given, kept):
    raw = raw_of(ColaSingle.fixture(tmp_path))
    for i, entry in enumerate(raw["data"]):
        folders = ("", "valA/", "valB/", "val2017/", "images/val2017/", "what#is")
        touch(tmp_path, *(f"{folder}{i}.png" for folder in folders))
        entry[0] = given.format(i)
    queries = read_queries(write(tmp_path, raw), tmp_path)
    wanted = tuple(tmp_path / kept.format(i) for i in range(6))
    assert tuple(image.path for image in queries.images) == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["data"][1][2].pop(), r"rows of \[2, 3\] flags for 3 labels"),
        (lambda raw: raw["labels"].__setitem__(1, raw["labels"][0]), "same label or image twice"),
        (lambda raw: raw["data"][1].__setitem__(0, raw["data"][0][0]), "same label or image twice"),
    ],
)
def test_malformed_file(tmp_path, fixture, change, message):
    raw = raw_of(fixture)
    change(raw)
    with refused(message):
        read_queries(write(tmp_path, raw), tmp_path)


def test_a_seen_query_that_is_no_label_is_refused(tmp_path, fixture):
    unknown = write(tmp_path, {"seen": ["green cone"], "unseen": []}, "side.json")
    with refused("'green cone', which is not a label"):
        read_subsets(unknown, fixture.items.texts)
