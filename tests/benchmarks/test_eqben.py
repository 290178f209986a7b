import itertools
import json
import random
from pathlib import Path

import pytest
import torch

from tests.benchmarks.json_files import write as write_file
from tests.benchmarks.models import check, oracle
from tests.refusals import refused
from vlmtune.benchmarks.eqben import PARTS, EqBen, EqBenEntry, read_entries
from vlmtune.benchmarks.files import write_json
from vlmtune.metrics.item_groups import ItemGroups

KINDS = ("text_accuracy", "image_accuracy", "group_accuracy")


def test_parts_weigh_alike_however_many_items_they_have(tmp_path):
    made = EqBen.fixture(tmp_path)  # two items of eqbensd, one of each other part
    made.load()
    values = made.items.truth.double()
    values[made.items.positions[PARTS.index("eqbenag")]] = 0.0
    values[made.items.positions[PARTS.index("eqbenkubric_cnt")]] = 0.0
    result = made.run(lambda images, texts, pairs: values)
    chance = (1 / 4 + 1 / 4 + 1 / 6) / 3
    expected = {"average": ((1 + 1 + 0 + 2 / 3 + 1) / 5, 7, chance), "group_accuracy": (6 / 8,)}
    for part in PARTS:
        right = float(part not in ("eqbenag", "eqbenkubric_cnt"))
        expected |= {f"{kind}/{part}": (right, 1 + (part == "eqbensd")) for kind in KINDS}
    check(result, expected | {"text_accuracy/eqbenkubric": (2 / 3,)})
    assert result.primary == "average"
    assert result.groups == (0, 1, 2, 3, 4, 5, 6, 6)
    weights = torch.tensor(result.group_weights, dtype=torch.float64)
    outcomes = torch.tensor(result.outcomes, dtype=torch.float64)
    value = result.metrics["average"].value
    assert ItemGroups(torch.tensor(result.groups), weights).mean(outcomes) == value


def test_of_some_parts_the_average_is_over_those_and_one_alone_has_outcomes(tmp_path):
    made, results = EqBen.fixture(tmp_path), []
    every, files = json.loads(Path(made.path).read_text()), {}
    for part in ("eqbensd", "eqbenkubric_cnt"):
        rows = [row for row in every if part in row["image0"]]
        files[part] = str(write_json(tmp_path / f"{part}.json", rows))
        some = EqBen(dict(files), str(tmp_path))
        some.load()
        values = torch.zeros(len(some.items.pairs), dtype=torch.float64)
        own = torch.tensor([[[2.0, 1], [0, 3]], [[2.0, 1], [3, 4]]]).double()
        values[some.items.positions[:2]] = own
        results.append(some.run(lambda images, texts, pairs, values=values: values))
    result, with_kubric = results
    assert result.outcomes == pytest.approx((1.0, 1 / 3))
    assert result.metrics["average"].value == pytest.approx(2 / 3)
    assert with_kubric.metrics["average"].value == pytest.approx((2 / 3 + 0) / 2)
    assert result.clusters == (0, 0)
    assert "text_accuracy/eqbenkubric" not in result.metrics


def test_a_file_for_each_part_may_leave_out_its_folder(tmp_path):
    made = EqBen.fixture(tmp_path)
    rows = json.loads(Path(made.path).read_text())
    files = {}
    for part in ("eqbenag", "eqbensd"):
        own = [row for row in rows if row["image0"].startswith(f"{part}/")]
        if part == "eqbenag":
            for row in own:
                row |= {side: row[side].removeprefix("eqbenag/") for side in ("image0", "image1")}
                row |= {side: [row[side]] for side in ("caption0", "caption1")}
        files[part] = str(tmp_path / f"{part}.json")
        (tmp_path / f"{part}.json").write_text(json.dumps({"video": own}))
    two = EqBen(files, str(tmp_path))
    result = two.run(oracle(two))
    assert (result.metrics["average"].value, result.metrics["average"].n) == (1.0, 2)
    groups = {key for key in result.metrics if key.startswith("group_accuracy")}
    assert groups == {"group_accuracy", "group_accuracy/eqbenag", "group_accuracy/eqbensd"}


def test_light_images_are_jpeg(tmp_path):
    made = EqBen.fixture(tmp_path)
    for path in tmp_path.rglob("*.png"):
        path.rename(path.with_suffix(".jpg"))
    with refused(r"expected 14 images for eqben, 12 are missing.*run `vlmtune download eqben`"):
        EqBen(made.path, str(tmp_path)).load()
    EqBen(made.path, str(tmp_path), light=True).load()


def test_unknown_parts_are_refused(tmp_path):
    row = {"image0": "v/0.png", "image1": "v/1.png", "caption0": "a", "caption1": "b"}
    path = write_file(tmp_path, [row])
    for annotations in (str(path), {"eqbenxx": str(path)}):
        with refused(r"got 'v/0.png': name the part"):
            EqBen(annotations, str(tmp_path)).load()


def record(part, i, listed=False):
    first, second = f"first {i}", f"second {i}"
    captions = {"caption0": first, "caption1": second}
    if listed:
        captions = {"caption0": [first, "unused"], "caption1": [second]}
    return {"image0": f"{part}/v{i}/0.png", "image1": f"{part}/v{i}/1.png", **captions}


def entry(part, i):
    return EqBenEntry((f"{part}/v{i}/0.png", f"{part}/v{i}/1.png"), (f"first {i}", f"second {i}"))


RECORDS = [record("eqbensd", i) for i in (0, 1)]
SPELLED = [{f"{key[:-1]}_{key[-1]}": value for key, value in row.items()} for row in RECORDS]
LAYOUTS = {
    "list": RECORDS,
    "winoground's spelling": SPELLED,
    "by video": {f"video {i}": [row] for i, row in enumerate(RECORDS)},
    "by video and subject": {"video": {str(i): [record("eqbensd", i, True)] for i in (0, 1)}},
}


@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
def test_items_of_every_layout(tmp_path, content):
    entries = read_entries(write_file(tmp_path, content))
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
    entries = read_entries(write_file(tmp_path, shuffled_scores(5)))
    assert entries == [entry("eqbenag" if i < 2 else "eqbensd", i) for i in range(5)]


def test_scores_find_their_private_info_in_the_files_beside_them(tmp_path):
    """As the script of the release joins them: score `argsort(order)[j]` has info j."""
    scores = shuffled_scores(5)
    infos = [score.pop("private_info") for score in scores]
    path = write_file(tmp_path, scores)
    with refused(r"no such file: put private_info\.json and private_random_idx\.json"):
        read_entries(path)
    order = random.Random(1).sample(range(20), 20)
    write_file(tmp_path, [infos[order.index(j)] for j in range(20)], "private_info.json")
    write_file(tmp_path, order, "private_random_idx.json")
    assert read_entries(path) == read_entries(
        write_file(tmp_path, shuffled_scores(5), "whole.json")
    )
    write_file(tmp_path, [*range(20)], "private_random_idx.json")
    with refused("other than four scores of two images and two captions"):
        read_entries(path)
    write_file(tmp_path, [*range(19)], "private_random_idx.json")
    with refused("the order of 20 scores in .*private_random_idx"):
        read_entries(path)
    write_file(tmp_path, ["a"], "private_info.json")
    with refused("EqBen's list of private_info"):
        read_entries(path)


def test_shuffled_scores_that_do_not_fit_are_refused(tmp_path):
    scores = shuffled_scores(3)
    with refused("other than four scores"):
        read_entries(write_file(tmp_path, scores[1:]))
    scores[0]["caption"] = "another"
    with refused("other than four scores of two images and two captions"):
        read_entries(write_file(tmp_path, scores))
    scores[0]["private_info"]["sample_cnt"] = "x"
    with refused("'x' at 0/private_info/sample_cnt"):
        read_entries(write_file(tmp_path, scores))


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
        read_entries(write_file(tmp_path, content))
