import json
import random
from collections import defaultdict
from itertools import permutations
from pathlib import Path

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_text, check, drawn, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.aro import MINIMUM, Aro, symmetric
from vlmtune.benchmarks.files import write_json
from vlmtune.types import ImageRef

REAL = Path(__file__).parents[2].parent / "shared/data/aro/aro_symmetric_relations.json"
NAMES = ("eating", "next to", "riding", "wearing", "near", "to the left of", "holding")
GROUPS = {
    "relation": [{"relation_name": name} for name in NAMES],
    "attribution": [
        {"attributes": [*pair]} for pair in permutations(["red", "blue", "tall", "wet"], 2)
    ],
}


def rows(count, groups, seed=0):
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
    touch(folder, "0.png")
    path = write_json(folder / "aro.json", items)
    return Aro(str(path), str(folder), **settings)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("task", "excluded", "least"),
    [("relation", {"next to", "near"}, 0), ("attribution", set(), MINIMUM)],
)
def test_as_published(tmp_path, seed, task, excluded, least):
    """The mean of the authors: argmax over [false, true], by group, some groups left out."""
    items, look = rows(400, GROUPS[task], seed), drawn(seed, values=11)
    names, hits = [], defaultdict(list)
    for item in items:
        names.append("_".join(item.get("attributes", [])) or item["relation_name"])
        pair = [look(item["false_caption"]), look(item["true_caption"])]
        hits[names[-1]].append(pair.index(max(pair)) == 1)
    wins = [look(item["true_caption"]) > look(item["false_caption"]) for item in items]
    listed = [name for name in hits if name not in excluded and len(hits[name]) >= least]
    assert 4 < len(listed) < len(hits)
    for convention, counted in (("strict", hits), ("reference", listed)):
        result = write(tmp_path, items, task=task, convention=convention).run(by_text(look))
        macro = (mean(mean(hits[name]) for name in counted), len(counted), 0.5)
        check(result, {"accuracy": share(wins), "macro_accuracy": macro})
        assert result.outcomes == tuple(map(float, wins))
        assert result.benchmark == f"aro_{task}"
        assert result.primary == ("accuracy" if convention == "strict" else "macro_accuracy")
    assert [group >= 0 for group in result.groups] == [name in listed for name in names]


def test_a_pair_with_exactly_the_minimum_counts(tmp_path):
    items = rows(MINIMUM, [{"attributes": ["a", "b"]}])
    items += rows(MINIMUM - 1, [{"attributes": ["b", "a"]}])
    made = write(tmp_path, items, task="attribution", convention="reference")
    result = made.run(by_text(drawn(0)))
    assert result.metrics["macro_accuracy"].n == 1
    assert "accuracy/a_b" in result.metrics
    with refused("a group that counts"):
        write(tmp_path, items[:20], task="attribution", convention="reference").load()


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
    items = rows(3, [{"attributes": ["white", "brown"]}])
    for item, (true, false) in zip(items, captions, strict=True):
        item |= {"true_caption": true, "false_caption": false}
    right = {captions[0][0], captions[1][0]}
    made = write(tmp_path, items, task="attribution", captions=str(path))
    phrases = {"known_phrases/true": (3 / 6,), "known_phrases/false": (1 / 6,)}
    result = made.run(by_text(lambda text: float(text in right)))
    check(result, {"balanced_accuracy": (0.5, 2, 0.5)} | phrases)
    with refused("captions with task attribution"):
        write(tmp_path, items, captions=str(path))


def test_boxes_are_cropped_and_symmetric_relations_known(tmp_path):
    fixture = Aro.fixture(tmp_path)
    assert fixture.items.images[0].box == (0, 0, 6, 4)
    assert len(fixture.items.images) == 3
    whole = Aro(fixture.path, fixture.images, crop=False)
    assert whole.items.images == tuple(ImageRef(Path(fixture.images) / f"{i}.jpg") for i in (0, 1))
    assert len(symmetric()) == 157
    assert not {"eating", "to the left of", "pulled by"} & symmetric()
    if REAL.is_file():
        assert symmetric() == set(json.loads(REAL.read_text()))


def test_a_file_of_the_other_task_and_a_box_without_area_are_refused(tmp_path):
    items = rows(3, [{"relation_name": "eating"}])
    with refused("'attributes'"):
        write(tmp_path, items, task="attribution").load()
    items[1]["bbox_w"] = 0
    with refused("no area"):
        write(tmp_path, items).load()
