import re

import pytest

from data_builders.corpora.cola import ColaBuilder
from tests.data_builders.conftest import groups, truths
from tests.data_builders.corpora.graphs import KINDS, clevr_reader
from tests.data_builders.worlds.scenes.truth import holds

PAIR = re.compile(r"an? (.+) and an? (.+)")
# Arguments of the reader and of the builder: two objects, their relation, any attributes of one.
QUERIES = [
    ({}, {"multi_half_wrong": 1}),
    ({"single": ["color"], "multi": ["color", "material"]},
     {"form": "relation", "reversals": True, "multi": 9, "multi_half_wrong": 1}),
    ({"single": ["size", "color", "material"]},
     {"single": 9, "misbound": 9, "half_wrong": 3, "multi": 0, "subsets": True}),
]  # fmt: skip


@pytest.mark.parametrize(("of_reader", "of_builder"), QUERIES)
def test_truth_by_brute_force(world, clevr, of_reader, of_builder):
    built = groups(ColaBuilder(clevr_reader(world, **of_reader), **of_builder))
    assert len(built) == 12
    corpus = {text for group in built for text in group.texts}
    kinds = {o[k]: i for s in clevr.values() for o in s["objects"] for i, k in enumerate(KINDS)}
    for group in built:
        scene = clevr[f"train/{group.image_ids[0]}.png"]
        assert group.exhaustive
        assert group.text_ids == group.texts
        for text, true in truths(group).items():
            assert true == holds(scene, text), text
            if "subsets" in of_builder:  # one word a kind, in the order of kinds
                order = [kinds[word] for word in text.split()]
                assert order == sorted(set(order)), text
        # Exhaustive means of every caption of the corpus, not only of the group.
        for text in corpus:
            assert (text in group.true_ids[0]) == holds(scene, text), text


def test_hard_negatives_are_of_the_image(world, clevr):
    built = groups(ColaBuilder(clevr_reader(world), half_wrong=0, single=9, misbound=9, multi=9))
    twins = 0
    for group in built:
        objects = clevr[f"train/{group.image_ids[0]}.png"]["objects"]
        words = {o[k] for o in objects for k in ("color", "material", "shape")} | {"a", "and"}
        true = [t for t, yes in truths(group).items() if yes]
        false = set(group.texts) - set(true)
        assert all(set(text.split()) <= words for text in group.texts)
        for text in true:
            if match := PAIR.fullmatch(text):
                (c1, s1), (c2, s2) = (part.split() for part in match.groups())
                twins += f"a {c2} {s1} and a {c1} {s2}" in false
    assert twins >= 5


def test_without_twins_the_rest_is_the_same(world):
    options = {"misbound": 0, "half_wrong": 0, "multi_misbound": 0}
    with_twins = groups(ColaBuilder(clevr_reader(world), **options))
    without_twins = groups(ColaBuilder(clevr_reader(world), twins=False, **options))
    left_out = 0
    for group, rest in zip(with_twins, without_twins, strict=True):
        assert set(rest.texts) == {text for text, yes in truths(group).items() if yes}
        assert (rest.key, rest.true_ids) == (group.key, group.true_ids)
        left_out += len(group.texts) - len(rest.texts)
    assert left_out >= 5


def test_idle_options_are_not_recorded(world):
    assert not {"twins", "measured"} & ColaBuilder(clevr_reader(world)).spec()["init_args"].keys()
    spec = ColaBuilder(clevr_reader(world), twins=False, measured=["a.json"]).spec()["init_args"]
    assert (spec["twins"], spec["measured"]) == (False, ["a.json"])
