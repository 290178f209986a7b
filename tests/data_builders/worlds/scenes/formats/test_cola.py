import re

import pytest

from tests.data_builders.conftest import load, unseen_of

CAPTION = re.compile(r"a (\w+) (\w+) and a (\w+) (\w+)")


@pytest.mark.parametrize("name", ["seen", "unseen"])
def test_multi_items_are_swapped_twins(world, name):
    listed = {tuple(p) for p in load(world / "compositions.json")[name]}
    items = load(world / f"cola/multi_{name}.json")
    assert len(items) == 6
    for first, caption, second, other in items:
        assert first != second
        assert (world / "images/cola" / first).is_file()
        assert (world / "images/cola" / second).is_file()
        c1, s1, c2, s2 = CAPTION.fullmatch(caption).groups()
        assert CAPTION.fullmatch(other).groups() == (c2, s1, c1, s2)
        assert {(c1, s1), (c2, s2), (c2, s1), (c1, s2)} <= listed
        assert sorted(caption.split()) == sorted(other.split())


def test_single_labels_agree_with_the_scenes_and_are_split_by_composition(world, clevr):
    content = load(world / "cola/single.json")
    labels = content["labels"]
    assert len(set(labels)) == len(labels)
    assert len(content["data"]) == 8
    for file, annotation, _, hard in content["data"]:
        things = clevr[file]["objects"]
        told = [[[o["color"], o["material"]], o["shape"]] for o in things]
        assert annotation == told
        words = {w for o in things for w in (o["color"], o["material"], o["shape"])}
        for text, candidate in zip(labels, hard, strict=True):
            assert candidate == bool(words & set(text.split()))
    assert all(any(row[2][k] for row in content["data"]) for k in range(len(labels)))
    split = load(world / "cola/single_split.json")
    labels = load(world / "cola/single.json")["labels"]
    unseen = unseen_of(world)
    assert sorted(split["seen"] + split["unseen"]) == labels
    for name, texts in split.items():
        assert texts
        for text in texts:
            color, _, shape = text.split()
            assert ((color, shape) in unseen) == (name == "unseen")
