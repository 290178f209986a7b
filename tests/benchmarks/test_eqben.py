import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.benchmarks.json_files import write as write_file
from tests.benchmarks.models import oracle, weighted
from tests.refusals import refused
from vlmtune.benchmarks.eqben import PARTS, EqBen, EqBenEntry, read_entries
from vlmtune.benchmarks.files import write_json

KINDS = ("text_accuracy", "image_accuracy", "group_accuracy")
# CLIP ViT-B/32: text, image and group score (%) of each sub-dataset, and the average of the 15.
CLIP = {
    "eqbenyoucook2": (49.48, 51.10, 36.50),
    "eqbengebc": (12.57, 20.12, 4.47),
    "eqbenag": (13.91, 8.72, 3.32),
    "eqbenkubric": (20.56, 21.29, 9.66),
    "eqbensd": (89.16, 86.05, 78.98),
}
CLIP_AVERAGE = 33.73
N = 10_000  # items a part


def wins_of(text, image, group):
    """N items with these scores, in percent."""
    both, text, image = (round(N * x / 100) for x in (group, text, image))
    rank = torch.arange(N)
    of_image = (rank < both) | ((rank >= text) & (rank < text + image - both))
    return rank < text, of_image


def averages(scores, order=PARTS):
    groups, kinds = [], []
    for part in order:
        kinds.append(wins_of(*scores[part]))
        groups += [part] * N
    text, image = (torch.cat(kind) for kind in zip(*kinds, strict=True))
    wins = (text, image, text & image)
    return EqBen("x", "y").more_metrics(wins, groups, torch.arange(len(groups)))


def test_average_of_the_fifteen_scores_as_printed():
    whole = {part: CLIP.get(part, CLIP["eqbenkubric"]) for part in PARTS}
    metric = averages(whole)["average"]
    assert 100 * metric.value == pytest.approx(CLIP_AVERAGE, abs=0.006)
    assert metric.chance == pytest.approx((1 / 4 + 1 / 4 + 1 / 6) / 3)
    assert metric.low < metric.value < metric.high
    again = averages(whole, order=tuple(reversed(PARTS)))["average"]
    assert again.value == pytest.approx(metric.value)


def test_kubric_is_the_mean_of_its_three_splits():
    # Group scores of CLIP ViT-B/32 by split, and of the whole.
    of_split = {"eqbenkubric_loc": 0.75, "eqbenkubric_cnt": 5.80, "eqbenkubric_attr": 22.44}
    scores = {part: (30.0, 30.0, group) for part, group in of_split.items()}
    found = averages(scores, order=tuple(of_split))
    assert 100 * found["group_accuracy/eqbenkubric"].value == pytest.approx(9.66, abs=0.006)
    assert found["average"].value == pytest.approx((0.3 + 0.3 + 0.0966) / 3, abs=1e-4)
    # Whatever the number of items in each, and whatever parts are missing.
    two = averages(CLIP | scores, order=("eqbensd", "eqbenkubric_cnt"))
    kubric, diffusion = (0.3 + 0.3 + 0.058) / 3, sum(CLIP["eqbensd"]) / 300
    assert two["average"].value == pytest.approx((kubric + diffusion) / 2)


def test_parts_weigh_alike_however_many_items_they_have(tmp_path):
    made = EqBen.fixture(tmp_path)  # two items of eqbensd, one of each other part
    made.load()
    values = made.items.truth.double()
    values[made.items.positions[PARTS.index("eqbenag")]] = 0.0
    values[made.items.positions[PARTS.index("eqbenkubric_cnt")]] = 0.0
    result = made.run(lambda images, texts, pairs: values)
    assert result.metrics["average"].value == pytest.approx((1 + 1 + 0 + 2 / 3 + 1) / 5)
    assert result.metrics["group_accuracy"].value == pytest.approx(6 / 8)
    assert result.metrics["text_accuracy/eqbenkubric"].value == pytest.approx(2 / 3)
    for part in PARTS:
        right = part not in ("eqbenag", "eqbenkubric_cnt")
        assert [result.metrics[f"{kind}/{part}"].value for kind in KINDS] == [float(right)] * 3
    assert result.metrics["text_accuracy/eqbensd"].n == 2
    assert result.primary == "average"
    assert result.groups == (0, 1, 2, 3, 4, 5, 6, 6)
    assert result.metrics["average"].value == weighted(result)


def test_one_part_alone_has_outcomes(tmp_path):
    made = EqBen.fixture(tmp_path)
    rows = [row for row in json.loads(Path(made.path).read_text()) if "eqbensd" in row["image0"]]
    path = write_json(tmp_path / "sd.json", rows)
    one = EqBen({"eqbensd": str(path)}, str(tmp_path))
    one.load()
    values = torch.zeros(len(one.items.pairs), dtype=torch.float64)
    values[one.items.positions] = torch.tensor([[[2.0, 1], [0, 3]], [[2.0, 1], [3, 4]]]).double()
    result = one.run(lambda images, texts, pairs: values)
    assert result.outcomes == pytest.approx((1.0, 1 / 3))
    assert result.metrics["average"].value == pytest.approx(2 / 3)
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
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    with refused(r"expected 14 images for eqben, 12 are missing.*run `vlmtune download eqben`"):
        EqBen(made.path, str(tmp_path)).load()
    EqBen(made.path, str(tmp_path), light=True).load()


def test_unknown_parts_are_refused(tmp_path):
    path = tmp_path / "other.json"
    row = {"image0": "v/0.png", "image1": "v/1.png", "caption0": "a", "caption1": "b"}
    path.write_text(json.dumps([row]))
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


def test_shuffled_scores_are_put_together_again_or_refused(tmp_path):
    entries = read_entries(write_file(tmp_path, shuffled_scores(5)))
    assert entries == [entry("eqbenag" if i < 2 else "eqbensd", i) for i in range(5)]
    scores = shuffled_scores(3)
    with refused("other than four scores"):
        read_entries(write_file(tmp_path, scores[1:]))
    scores[0]["caption"] = "another"
    with refused("other than four scores of two images and two captions"):
        read_entries(write_file(tmp_path, scores))
    scores[0]["private_info"]["sample_cnt"] = "x"
    with refused("'x' at 0/private_info/sample_cnt"):
        read_entries(write_file(tmp_path, scores))


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
