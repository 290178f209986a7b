import random
from collections import Counter
from dataclasses import replace

from data_builders.worlds.scenes.formats.aro import _related
from data_builders.worlds.scenes.formats.context import SceneContext
from data_builders.worlds.scenes.sampling import WorldSpec, sample_scene
from data_builders.worlds.scenes.scene import Scene, camera
from tests.data_builders.conftest import SUITE, load
from vlmtune.benchmarks.aro import symmetric


def test_relations_are_of_the_whole_image_not_symmetric_and_equally_frequent(suite):
    rows = load(suite / "aro/visual_genome_relation.json")
    assert len({row["relation_name"] for row in rows}) > 2
    for row in rows:
        assert f" is {row['relation_name']} " in row["true_caption"]
        assert row["relation_name"] not in symmetric()
        assert sorted(row["true_caption"].split()) == sorted(row["false_caption"].split())
        assert [row[f"bbox_{k}"] for k in "xywh"] == [0, 0, 32, 32]
    # Each of the four is in a quarter of the rows at most; a stack is rarer.
    counts = Counter(row["relation_name"] for row in rows)
    assert max(counts.values()) <= SUITE["benchmarks"] // 4
    assert len(counts) >= 4


def test_a_relation_that_is_true_with_its_objects_exchanged_is_not_stated():
    cube = sample_scene(WorldSpec(), random.Random(0)).objects[0]
    x, y, _ = camera().axes["right"]
    left, right = replace(cube, center=(-x, -y, 0.5)), replace(cube, center=(x, y, 0.5))
    context = SceneContext(Scene((left, right)), WorldSpec(), random.Random(0))
    assert len(context.relations()) == 2
    assert _related(1)(context) is None


def test_attributes_are_named_and_the_box_holds_both_objects(suite, graphs):
    for row in load(suite / "aro/visual_genome_attribution.json"):
        first, second = (side.split() for side in row["true_caption"].split(" and "))
        assert row["attributes"] == [first[1], second[1]]
        assert "plain" not in row["attributes"]
        assert sorted(row["true_caption"].split()) == sorted(row["false_caption"].split())
        x, y, w, h = (row[f"bbox_{k}"] for k in "xywh")
        inside = 0
        for thing in graphs["scenes"][row["image_path"]]["objects"]:
            words = {thing["shape"], *map(str, thing.values())}
            if words.issuperset(first[1:]) or words.issuperset(second[1:]):
                left, top, width, height = thing["box"]
                across = x <= left and left + width <= x + w
                inside += across and y <= top and top + height <= y + h
        assert inside >= 2
