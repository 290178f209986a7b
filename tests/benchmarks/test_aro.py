import json
import random
from collections import defaultdict
from pathlib import Path

import pytest
from PIL import Image

from tests.benchmarks.models import by_text, drawn
from tests.refusals import refused
from vlmtune.benchmarks.aro import MINIMUM, Aro, symmetric
from vlmtune.benchmarks.files import write_json
from vlmtune.types import ImageRef

REAL = Path(__file__).parents[2].parent / "shared/data/aro/aro_symmetric_relations.json"


def rows(count, groups, seed):
    """Random items: one image each, distinct captions, groups of uneven size."""
    rng = random.Random(seed)
    weights = [1 + i for i in range(len(groups))]
    made = []
    for i in range(count):
        (group,) = rng.choices(groups, weights)
        box = {"bbox_x": 1, "bbox_y": 2, "bbox_w": 3, "bbox_h": 4}
        texts = {"true_caption": f"true {i}", "false_caption": f"false {i}"}
        made.append({"image_path": "0.png", **box, **texts, **group})
    return made


def write(folder, items, **settings):
    Image.new("RGB", (8, 8)).save(folder / "0.png")
    path = write_json(folder / "aro.json", items)
    return Aro(str(path), str(folder), **settings)


def published(items, look, key, excluded, least):
    """The mean of the authors: argmax over [false, true], by group, some groups left out."""
    hits = defaultdict(list)
    for item in items:
        pair = [look(item["false_caption"]), look(item["true_caption"])]
        hits[key(item)].append(pair.index(max(pair)) == 1)
    kept = [own for group, own in hits.items() if group not in excluded and len(own) >= least]
    return sum(sum(own) / len(own) for own in kept) / len(kept), len(kept)


@pytest.mark.parametrize("seed", range(3))
def test_relation_as_published(tmp_path, seed):
    names = ["eating", "next to", "riding", "wearing", "near", "to the left of", "holding"]
    items = rows(600, [{"relation_name": name} for name in names], seed)
    look = drawn(seed, values=11)
    result = write(tmp_path, items, convention="reference").run(by_text(look))
    excluded = {"next to", "near"}
    expected, n = published(items, look, lambda row: row["relation_name"], excluded, 0)
    metric = result.metrics["macro_accuracy"]
    assert result.primary == "macro_accuracy"
    assert metric.value == pytest.approx(expected)
    assert (metric.n, metric.chance) == (n, 0.5)
    wins = [look(row["true_caption"]) > look(row["false_caption"]) for row in items]
    assert result.outcomes == tuple(map(float, wins))
    counted = [group >= 0 for group in result.groups]
    assert counted == [row["relation_name"] not in excluded for row in items]
    strict = write(tmp_path, items).run(by_text(look))
    everything, n = published(items, look, lambda row: row["relation_name"], set(), 0)
    assert strict.primary == "accuracy"
    assert strict.metrics["macro_accuracy"].value == pytest.approx(everything)
    assert strict.metrics["macro_accuracy"].n == n == len(names)
    assert strict.metrics["accuracy"].value == pytest.approx(sum(wins) / 600)
    assert strict.outcomes == tuple(map(float, wins))
    assert strict.benchmark == "aro_relation"


@pytest.mark.parametrize("seed", range(3))
def test_attribution_as_published(tmp_path, seed):
    words = ["red", "blue", "tall", "wet", "old"]
    groups = [{"attributes": [a, b]} for a in words for b in words if a != b]
    items, look = rows(600, groups, seed), drawn(seed, values=11)
    made = write(tmp_path, items, task="attribution", convention="reference")
    result = made.run(by_text(look))
    expected, n = published(items, look, lambda r: "_".join(r["attributes"]), set(), MINIMUM)
    assert 5 < n < 20  # pairs on both sides of the minimum
    assert result.metrics["macro_accuracy"].value == pytest.approx(expected)
    assert result.metrics["macro_accuracy"].n == n
    assert result.benchmark == "aro_attribution"


def test_a_pair_with_exactly_the_minimum_counts(tmp_path):
    items = rows(MINIMUM, [{"attributes": ["a", "b"]}], 0)
    items += rows(MINIMUM - 1, [{"attributes": ["b", "a"]}], 0)
    made = write(tmp_path, items, task="attribution", convention="reference")
    result = made.run(by_text(drawn(0)))
    assert result.metrics["macro_accuracy"].n == 1
    assert "accuracy/a_b" in result.metrics
    few = write(tmp_path, items[:20], task="attribution", convention="reference")
    with refused("a group that counts"):
        few.load()


@pytest.mark.parametrize("suffix", ["txt", "json"])
def test_balanced_attribution(tmp_path, suffix):
    known = ["A white horse eats, near a brown dog.", "an old wet man-made table"]
    path = tmp_path / f"captions.{suffix}"
    rows_of_coco = {"annotations": [{"caption": caption} for caption in known]}
    path.write_text(json.dumps(rows_of_coco) if suffix == "json" else "\n".join(known))
    captions = [
        # The true and the false phrases that are known: 2 and 0, 1 and 1, 0 and 0.
        ("the white horse and the brown dog", "the brown horse and the white dog"),
        ("the white horse and the brown table", "the brown dog and the white table"),
        ("the red cup and the wet box", "the wet cup and the red box"),
    ]
    items = rows(3, [{"attributes": ["white", "brown"]}], 0)
    for item, (true, false) in zip(items, captions, strict=True):
        item |= {"true_caption": true, "false_caption": false}
    right = {captions[0][0], captions[1][0]}
    made = write(tmp_path, items, task="attribution", captions=str(path))
    metrics = made.run(by_text(lambda text: float(text in right))).metrics
    balanced = metrics["balanced_accuracy"]
    assert (balanced.value, balanced.n, balanced.chance) == (0.5, 2, 0.5)
    assert metrics["known_phrases/true"].value == pytest.approx(3 / 6)
    assert metrics["known_phrases/false"].value == pytest.approx(1 / 6)
    with refused("captions with task attribution"):
        write(tmp_path, items, captions=str(path))


def test_boxes_are_cropped(tmp_path):
    fixture = Aro.fixture(tmp_path)
    assert fixture.items.images[0].box == (0, 0, 6, 4)
    assert len(fixture.items.images) == 3
    whole = Aro(fixture.path, fixture.images, crop=False)
    assert whole.items.images == tuple(ImageRef(Path(fixture.images) / f"{i}.jpg") for i in (0, 1))


def test_symmetric_names():
    assert len(symmetric()) == 157
    assert not {"eating", "to the left of", "pulled by"} & symmetric()
    if REAL.is_file():
        assert symmetric() == set(json.loads(REAL.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox_w": 0}, "no area"),
        ({"bbox_x": None}, "bbox_x, bbox_y.*TypeError"),
        ({"bbox_h": float("nan")}, "NaN"),
        ({"true_caption": ""}, "row 1"),
        ({"image_path": 3}, "row 1"),
        ({"relation_name": None}, "another layout"),
    ],
)
def test_malformed_items(tmp_path, change, message):
    items = rows(3, [{"relation_name": "eating"}], 0)
    items[1] |= change
    with refused(message):
        write(tmp_path, items).load()


def test_a_file_of_the_other_task(tmp_path):
    with refused("'attributes'"):
        write(tmp_path, rows(3, [{"relation_name": "eating"}], 0), task="attribution").load()
