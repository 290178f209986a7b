import itertools
import random

import pytest

from tests.benchmarks.json_files import write
from tests.refusals import refused
from vlmtune.benchmarks.eqben_files import EqBenEntry, read_entries


def record(part, i, listed=False):
    first, second = f"first {i}", f"second {i}"
    captions = {"caption0": first, "caption1": second}
    if listed:
        captions = {"caption0": [first, "unused"], "caption1": [second]}
    return {"image0": f"{part}/v{i}/0.png", "image1": f"{part}/v{i}/1.png", **captions}


def entry(part, i):
    return EqBenEntry((f"{part}/v{i}/0.png", f"{part}/v{i}/1.png"), (f"first {i}", f"second {i}"))


@pytest.mark.parametrize(
    "content",
    [
        [record("eqbensd", 0), record("eqbensd", 1)],
        {"video a": [record("eqbensd", 0)], "video b": [record("eqbensd", 1)]},
        {"video": {"cup": [record("eqbensd", 0, True)], "door": [record("eqbensd", 1, True)]}},
        [
            {key[:-1] + "_" + key[-1]: value for key, value in record("eqbensd", i).items()}
            for i in range(2)
        ],
    ],
    ids=["list", "by video", "by video and subject", "winoground's spelling"],
)
def test_items_of_every_layout(tmp_path, content):
    entries = read_entries(write(tmp_path, content))
    assert entries == [entry("eqbensd", 0), entry("eqbensd", 1)]
    assert entries[0].part == "eqbensd"


def shuffled_scores(number, seed=0):
    """The layout in which every entry is one score to be given."""
    scores = []
    for i in range(number):
        part = "eqbenag" if i < 2 else "eqbensd"
        whole = record(part, i)
        for c, k in itertools.product((0, 1), repeat=2):
            info = {"dataset": part, "name": f"c{c}i{k}", "sample_cnt": i}
            shown = {"image": whole[f"image{k}"], "caption": whole[f"caption{c}"]}
            scores.append({**shown, "private_info": info})
    random.Random(seed).shuffle(scores)
    return scores


def test_shuffled_scores_are_put_together_again(tmp_path):
    entries = read_entries(write(tmp_path, shuffled_scores(5)))
    assert entries == [entry("eqbenag" if i < 2 else "eqbensd", i) for i in range(5)]


def test_scores_find_their_private_info_in_the_files_beside_them(tmp_path):
    """As the script of the release joins them: score `argsort(order)[j]` has info j."""
    scores = shuffled_scores(5)
    infos = [score.pop("private_info") for score in scores]
    path = write(tmp_path, scores)
    with refused(r"no such file: put private_info\.json and private_random_idx\.json"):
        read_entries(path)
    order = random.Random(1).sample(range(20), 20)
    write(tmp_path, [infos[order.index(j)] for j in range(20)], "private_info.json")
    write(tmp_path, order, "private_random_idx.json")
    assert read_entries(path) == read_entries(write(tmp_path, shuffled_scores(5), "whole.json"))
    write(tmp_path, [*range(20)], "private_random_idx.json")
    with refused("other than four scores of two images and two captions"):
        read_entries(path)
    write(tmp_path, [0] * 20, "private_random_idx.json")
    with refused("a permutation of 20 scores in .*private_random_idx"):
        read_entries(path)
    write(tmp_path, ["a"], "private_info.json")
    with refused("EqBen's list of private_info"):
        read_entries(path)


def test_shuffled_scores_that_do_not_fit_are_refused(tmp_path):
    scores = shuffled_scores(3)
    with refused("other than four scores"):
        read_entries(write(tmp_path, scores[1:]))
    scores[0]["caption"] = "another"
    with refused("other than four scores of two images and two captions"):
        read_entries(write(tmp_path, scores))
    scores[0]["private_info"]["sample_cnt"] = "x"
    with refused("'x' at 0/private_info/sample_cnt"):
        read_entries(write(tmp_path, scores))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text", "'text' at top"),
        ([[1]], "1 at top/0/0"),
        ({"video": [{"image0": "a/b", "caption0": "x"}]}, "top/video/0"),
        ([record("eqbensd", 0) | {"caption1": []}], "without caption1 at top/0"),
        ([record("eqbensd", 0) | {"image1": " "}], "without image1"),
    ],
)
def test_what_is_no_item_is_refused_by_place(tmp_path, content, message):
    with refused(message):
        read_entries(write(tmp_path, content))
