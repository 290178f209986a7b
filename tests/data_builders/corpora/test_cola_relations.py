"""Two-object queries with a relation, and queries of any subset of attributes."""

import itertools
import re
from collections import Counter
from typing import Any

from data_builders.corpora.cola import ColaBuilder
from data_builders.corpora.gqa import GQAGraphs
from tests.data_builders.conftest import dump, groups, truths
from tests.data_builders.corpora.graphs import (
    COGENT_A,
    COLORS,
    PHRASES,
    RELATED,
    clevr_reader,
    clevr_scenes,
    every_kind,
    gqa,
    numbered,
)
from tests.data_builders.worlds.scenes.truth import holds

EVERY: dict[str, Any] = {
    "single": 9,
    "misbound": 0,
    "half_wrong": 0,
    "multi": 99,
    "multi_misbound": 0,
}


def texts_of(builder: ColaBuilder) -> dict[str, dict[str, bool]]:
    return {group.image_ids[0]: truths(group) for group in groups(builder)}


def test_the_form_of_the_paper(tmp_path):
    objects = {
        "p": "square white plate",
        "t": "brown wooden table",
        "r": "red car",
        "b": "blue car",
    }
    relations = [("p", "on top of", "t"), ("r", "to the left of", "b"), ("p", "near", "r")]
    reader = gqa(tmp_path, {"1": objects}, {"1": relations}, multi=2)
    (texts,) = texts_of(ColaBuilder(reader, form="relation", reversals=True, **EVERY)).values()
    assert {text: yes for text, yes in texts.items() if len(text.split()) > 3} == {
        "square white plate on top of brown wooden table": True,
        "brown wooden plate on top of square white table": False,
        "brown wooden table on top of square white plate": False,
        # One noun on both sides: the twin is the reversal.
        "red car to the left of blue car": True,
        "blue car to the left of red car": False,
        # "near" holds in both directions, so that only the twin is false: no red plate is there.
        "square white plate near red car": True,
        "red plate near square white car": False,
    }
    (group,) = (group for group, _ in ColaBuilder(reader, form="relation").records())
    assert not group.exhaustive
    pairs = {text for text in group.true_ids[0] if len(text.split()) > 3}
    assert {"white plate on top of wooden table", "blue car to the right of red car"} <= pairs
    assert "red car near square white plate" not in pairs


def test_two_queries_may_read_alike(tmp_path):
    """A blue "light car" makes "blue light car" true, though no car is blue and light."""
    objects = numbered("blue light_car", "old car", "blue light bus")
    reader = gqa(tmp_path, {"1": objects}, {"1": [("1", "near", "2")]}, multi=2)
    everything: dict[str, Any] = EVERY | {"misbound": 99, "multi_misbound": 99}
    (texts,) = texts_of(ColaBuilder(reader, form="relation", **everything)).values()
    assert texts["blue light car"]
    assert texts["blue light bus"]
    assert texts["old bus"] is False
    assert texts["old bus near blue light bus"] is False
    assert "blue light car near blue light bus" not in texts


def test_all_subsets_of_clevrs_attributes(tmp_path):
    """168 queries under condition A of CoGenT: 144 with a colour and 24 without (section 9)."""
    allowed = [kind for kind in every_kind() if kind["color"] in COGENT_A[kind["shape"]]]
    scenes = [{"objects": [kind]} for kind in allowed]
    reader = clevr_scenes(tmp_path, scenes, ["size", "color", "material"])
    builder = ColaBuilder(reader, single=99, misbound=0, half_wrong=0, multi=0, subsets=True)
    built = texts_of(builder)
    queries = {text for texts in built.values() for text in texts}
    assert len(queries) == 168
    assert sum(bool(set(COLORS) & set(text.split())) for text in queries) == 144
    assert all(len(texts) == 7 and all(texts.values()) for texts in built.values())
    few = texts_of(ColaBuilder(reader, single=3, misbound=0, half_wrong=0, multi=0, subsets=True))
    assert {len(texts) for texts in few.values()} == {3}


def test_clear_relations_alone_are_stated(world, clevr):
    reader = clevr_reader(world, clear=True, single=["color"], multi=["color"])
    stated = 0
    for image, texts in texts_of(ColaBuilder(reader, form="relation", **EVERY)).items():
        scene = clevr[f"train/{image}.png"]
        names = [f"{obj['color']} {obj['shape']}" for obj in scene["objects"]]
        expected = set()
        for i, j in itertools.permutations(range(len(names)), 2):
            expected.add(f"{names[i]} {clearly(scene, i, j)} {names[j]}")
        found = {text for text, true in texts.items() if true and RELATED.fullmatch(text)}
        assert found <= expected
        stated += len(found)
    assert stated > 20


def test_sentences_say_the_same(world, clevr):
    reader = clevr_reader(world, single=["color"], multi=["color"])
    options: dict[str, Any] = {"form": "relation", "reversals": True, "sides": 4, "multi": 9}
    built = list(ColaBuilder(reader, sentences=True, **options).records())
    short = {g.image_ids[0]: g for g, _ in ColaBuilder(reader, **options).records()}
    worded = Counter[bool]()
    for group, _ in built:
        scene = clevr[f"train/{group.image_ids[0]}.png"]
        for text, true in truths(group).items():
            first = re.sub("^the ", "", text)
            plain = re.sub(r" is (.+) the (\w+ \w+)$", r" \1 \2", first)
            plain = re.sub(r"^a photo of an? (.+) of the picture$", r"\1", plain)
            worded[plain != text] += bool(RELATED.fullmatch(plain))
            if "on the" not in plain:
                assert true == holds(scene, plain), text
            assert (plain in group.true_ids[0]) == true == (text in group.true_ids[0]), text
        assert group.true_ids[0] >= short[group.image_ids[0]].true_ids[0]
    assert 0.6 < worded[True] / worded[False] < 1.6
    assert "sentences" not in ColaBuilder(reader).spec()["init_args"]


def clearly(scene: dict, i: int, j: int) -> str | None:
    """The phrase of the ground direction in which i is farther from j, if 1.3 times as far."""
    a, b = (scene["objects"][k]["3d_coords"] for k in (i, j))
    far = {
        phrase: sum((p - q) * d for p, q, d in zip(a, b, scene["directions"][name], strict=True))
        for name, phrase in PHRASES.items()
    }
    (best, distance), _, (_, second), _ = sorted(
        far.items(), key=lambda item: abs(item[1]) + (item[1] > 0) * 1e-9, reverse=True
    )
    return best if distance >= 0.6 and distance >= 1.3 * abs(second) else None


def test_sides_of_boxes(tmp_path):
    graph = {"width": 100, "height": 50, "objects": {
        "1": {"name": "cat", "attributes": ["black"], "x": 0, "y": 20, "w": 20, "h": 10},
        "2": {"name": "cat", "attributes": ["white"], "x": 60, "y": 0, "w": 20, "h": 10},
        "3": {"name": "dog", "attributes": ["black"]},
        # One on either side: neither side is false of a brown cow.
        "4": {"name": "cow", "attributes": ["brown"], "x": 0, "y": 20, "w": 20, "h": 10},
        "5": {"name": "cow", "attributes": ["brown"], "x": 80, "y": 20, "w": 20, "h": 10},
    }}  # fmt: skip
    path = dump(tmp_path / "graphs.json", {"7": graph})
    reader = GQAGraphs(path, tmp_path, single=1)
    (image,) = reader.images()
    assert [obj.center for obj in image.objects[:3]] == [(0.1, 0.5), (0.7, 0.1), None]
    (tmp_path / "7.jpg").touch()
    built = ColaBuilder(reader, single=0, multi=0, sides=9)
    assert texts_of(built)["7"] == {
        "black cat on the left": True,
        "black cat on the right": False,
        "white cat on the right": True,
        "white cat on the left": False,
        "white cat on the top": True,
        "white cat on the bottom": False,
    }
