from collections import Counter

import pytest

from tests.data_builders.conftest import SUITE, load
from tests.data_builders.worlds.scenes.truth import holds
from vlmtune.benchmarks.aro import symmetric


@pytest.mark.parametrize("task", ["relation", "attribution"])
def test_only_the_true_caption_is_true(suite, graphs, task):
    rows = load(suite / f"aro/visual_genome_{task}.json")
    assert len(rows) == SUITE["benchmarks"]
    for row in rows:
        scene = graphs["scenes"][row["image_path"]]
        assert holds(scene, row["true_caption"]), row
        assert not holds(scene, row["false_caption"]), row
        words = [Counter(row[f"{side}_caption"].split()) for side in ("true", "false")]
        assert words[0] == words[1]


def test_relations_are_of_the_whole_image_not_symmetric_and_equally_frequent(suite):
    rows = load(suite / "aro/visual_genome_relation.json")
    assert len({row["relation_name"] for row in rows}) > 2
    for row in rows:
        assert f" is {row['relation_name']} " in row["true_caption"]
        assert row["relation_name"] not in symmetric()
        assert [row[f"bbox_{k}"] for k in "xywh"] == [0, 0, 32, 32]
    # Each of the four is in a quarter of the rows at most; a stack is rarer.
    counts = Counter(row["relation_name"] for row in rows)
    assert max(counts.values()) <= SUITE["benchmarks"] // 4
    assert len(counts) >= 4


def test_attributes_are_named_and_the_box_holds_both_objects(suite, graphs):
    for row in load(suite / "aro/visual_genome_attribution.json"):
        first, second = (side.split() for side in row["true_caption"].split(" and "))
        assert row["attributes"] == [first[1], second[1]]
        x, y, w, h = (row[f"bbox_{k}"] for k in "xywh")
        inside = 0
        for thing in graphs["scenes"][row["image_path"]]["objects"]:
            words = {thing["shape"], *map(str, thing.values())}
            if words.issuperset(first[1:]) or words.issuperset(second[1:]):
                left, top, width, height = thing["box"]
                across = x <= left and left + width <= x + w
                inside += across and y <= top and top + height <= y + h
        assert inside >= 2
