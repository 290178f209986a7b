import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_builders.corpora.annotations import ClevrScenes
from data_builders.corpora.cola_pairs import BENCHMARK, ColaPairsBuilder
from data_builders.corpora.gqa import GQAGraphs
from tests.data_builders.conftest import load, released
from tests.data_builders.corpora.graphs import PHRASES, clevr_scenes, gqa
from tests.refusals import refused
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.config import instantiate
from vlmtune.data.schema import check, read_manifest

Image = tuple[dict[str, str], list[tuple[str, str, str]]]


def corpus(folder: Path, images: dict[str, Image], **arguments: Any) -> GQAGraphs:
    """An image is its objects, "attribute ... name" by key, and their relations."""
    objects = {image: objects for image, (objects, _) in images.items()}
    relations = {image: stated for image, (_, stated) in images.items()}
    return gqa(folder, objects, relations, **arguments)


def pairs(builder: ColaPairsBuilder) -> set[frozenset[tuple[str, str]]]:
    """Both images of each record with their captions."""
    found = set()
    for group, files in builder.records():
        check(group)
        assert group.truth.tolist() == [[True, False], [False, True]]
        assert [file.stem for file in files] == list(group.image_ids)
        found.add(frozenset(zip(group.image_ids, group.texts, strict=True)))
    return found


def test_exchanged_compounds(tmp_path):
    images: dict[str, Image] = {
        "1": ({"a": "red cube", "b": "blue sphere"}, [("a", "on", "b")]),
        "2": ({"a": "blue cube", "b": "red sphere"}, [("b", "on", "a")]),  # exchanged
        "3": ({"a": "red cube", "b": "green sphere"}, [("a", "on", "b")]),  # another colour
        "4": ({"a": "blue cube", "b": "red sphere"}, []),  # no relation is annotated
        "5": ({"a": "green cube", "b": "green sphere"}, [("a", "on", "b")]),  # one colour
        "6": ({"a": "red cube", "b": "blue cube"}, [("a", "on", "b")]),  # one noun
        "7": ({"a": "blue cube", "b": "red cube"}, [("a", "on", "b")]),
    }
    reader = corpus(tmp_path, images)
    assert pairs(ColaPairsBuilder(reader)) == {
        frozenset({("1", "red cube on blue sphere"), ("2", "red sphere on blue cube")})
    }
    # Without relations image 4 fits as well as image 2.
    two = pairs(ColaPairsBuilder(reader, form="and"))
    assert two == {
        frozenset({("1", "a red cube and a blue sphere"), (k, "a blue cube and a red sphere")})
        for k in ("2", "4")
    }
    assert len(pairs(ColaPairsBuilder(reader, form="and", per_image=1))) == 1


def test_captions_state_the_exchanged_words(tmp_path):
    """Of many attributes the exchanged one is stated, and `multi` says how many."""
    one = ({"a": "big old red cube", "b": "blue new round sphere"}, [("a", "on", "b")])
    other = ({"a": "blue small cube", "b": "red wide sphere"}, [("a", "on", "b")])
    reader = corpus(tmp_path, {"1": one, "2": other}, multi=2)
    assert pairs(ColaPairsBuilder(reader)) == {
        frozenset({
            ("1", "big red cube on blue new sphere"), ("2", "blue small cube on red wide sphere"),
        })
    }  # fmt: skip


def test_an_image_lists_the_captions_of_all_its_records(tmp_path):
    """Two records of one image can meet in a batch, where both captions are true of it."""
    images: dict[str, Image] = {
        "1": ({"a": "red old cube", "b": "blue new sphere"}, [("a", "on", "b")]),
        "2": ({"a": "blue cube", "b": "red sphere"}, [("a", "on", "b")]),
        "3": ({"a": "new cube", "b": "old sphere"}, [("a", "on", "b")]),
    }
    groups = [group for group, _ in ColaPairsBuilder(corpus(tmp_path, images)).records()]
    captions = {"red cube on blue sphere", "old cube on new sphere"}
    true = [ids for g in groups for i, ids in zip(g.image_ids, g.true_ids, strict=True) if i == "1"]
    assert len(true) == 2
    assert all(captions <= ids for ids in true)


def scene_file(folder: Path, count: int = 24) -> tuple[ClevrScenes, dict[str, dict]]:
    """CLEVR's scenes of two or three objects in a row, and the scenes by image."""
    rng, names = random.Random(5), ("red", "blue", "green")
    scenes = []
    for _ in range(count):
        shapes = rng.sample(["cube", "sphere", "cone"], rng.randint(2, 3))
        objects = [{"shape": s, "color": rng.choice(names)} for s in shapes]
        rows = range(len(objects))
        left = [[i for i in rows if i < j] for j in rows]
        right = [[i for i in rows if i > j] for j in rows]
        scenes.append({"objects": objects, "relationships": {"left": left, "right": right}})
    reader = clevr_scenes(folder, scenes, ["color"], ["color"])
    return reader, {str(number): scene for number, scene in enumerate(scenes)}


def test_scenes_by_brute_force(tmp_path):
    """Every record is valid; every two images that fit are a record, and no others."""
    reader, scenes = scene_file(tmp_path)

    def compounds(scene: dict) -> set[tuple[str, str, str, str, str]]:
        names = [(o["color"], o["shape"]) for o in scene["objects"]]
        return {
            (*names[i], PHRASES[relation], *names[j])
            for relation, lists in scene["relationships"].items()
            for j, subjects in enumerate(lists)
            for i in subjects
        }

    stated = {image: compounds(scene) for image, scene in scenes.items()}
    expected = set()
    for (one, first), (other, second) in itertools.combinations(stated.items(), 2):
        for (a, s, r, b, t), (c, u, q, d, v) in itertools.product(first - second, second - first):
            if a != b and s != t and {(b, s), (a, t)} == {(c, u), (d, v)}:
                texts = f"{a} {s} {r} {b} {t}", f"{c} {u} {q} {d} {v}"
                expected.add(frozenset(zip((one, other), texts, strict=True)))
    built = pairs(ColaPairsBuilder(reader, per_image=99))
    assert built <= expected
    images = [frozenset(image for image, _ in pair) for pair in built]
    assert len(images) == len(set(images)) > 5
    assert set(images) == {frozenset(image for image, _ in pair) for pair in expected}
    few = pairs(ColaPairsBuilder(reader, per_image=1))
    assert set(Counter(image for pair in few for image, _ in pair).values()) == {1}
    assert few != pairs(ColaPairsBuilder(reader, per_image=1, seed=1))
    # Scenes are annotated in full: a record lists every caption that is true.
    for group, _ in ColaPairsBuilder(reader).records():
        assert group.exhaustive
        for image, true in zip(group.image_ids, group.true_ids, strict=True):
            texts = {" ".join(compound) for compound in stated[image]}
            assert texts == {text for text in true if len(text.split()) > 2}


def test_benchmark_file(tmp_path):
    """In the layout of Cola's, over other images than the shards."""
    reader, _ = scene_file(tmp_path, 40)
    builder = ColaPairsBuilder(reader, per_image=9, benchmark=0.5)
    for name in ("a", "b"):
        instantiate(builder.spec(), ColaPairsBuilder).build(tmp_path / name, progress=False)
    assert (tmp_path / "a" / BENCHMARK).read_text() == (tmp_path / "b" / BENCHMARK).read_text()
    manifest = read_manifest(tmp_path / "a")
    assert manifest == read_manifest(tmp_path / "b")
    rows = load(tmp_path / "a" / BENCHMARK)
    assert len(rows) == manifest.counts["pairs: benchmark"] > 0
    assert manifest.records == manifest.counts["pairs: training"] > 0
    items = ColaMulti(str(tmp_path / "a" / BENCHMARK), str(tmp_path)).read()
    assert len(items) == len(rows)
    measured = {name for row in rows for name in row[::2]}
    assert all((tmp_path / name).is_file() for name in measured)
    trained = {f"{k}.png" for group, _ in builder.records() for k in group.image_ids}
    assert not trained & measured
    # The file alone; and `measured` of it leaves out its images, whoever builds.
    ColaPairsBuilder(reader, benchmark=1.0).build(tmp_path / "whole", progress=False)
    names = [path.name for path in sorted((tmp_path / "whole").iterdir())]
    assert names == [BENCHMARK, "manifest.json"]
    rest = ColaPairsBuilder(reader, per_image=9, measured=[tmp_path / "a" / BENCHMARK])
    assert not {f"{k}.png" for group, _ in rest.records() for k in group.image_ids} & measured
    assert rest.counts["skipped: measured"] == len(measured)


def test_excluded_compositions_and_images(tmp_path):
    images: dict[str, Image] = {
        "1": ({"a": "red cube", "b": "blue sphere"}, [("a", "on", "b")]),
        "2": ({"a": "blue cube", "b": "red sphere"}, [("a", "on", "b")]),
    }
    reader = corpus(tmp_path, images)
    path = tmp_path / "exclude.json"
    for content in ({"unseen": [[["red"], "sphere"]]}, {"unseen": [], "images": ["2"]}):
        path.write_text(json.dumps(content))
        assert pairs(ColaPairsBuilder(reader, exclude=path)) == set()
    path.write_text(json.dumps({"unseen": [[["red", "old"], "sphere"]]}))
    assert len(pairs(ColaPairsBuilder(reader, exclude=path))) == 1


def test_missing_images(tmp_path):
    images: dict[str, Image] = {
        str(k): ({"a": "red cube", "b": "blue sphere"}, [("a", "on", "b")]) for k in range(1, 4)
    }
    images["4"] = ({"a": "blue cube", "b": "red sphere"}, [("a", "on", "b")])
    reader = corpus(tmp_path, images)
    (tmp_path / "1.jpg").unlink()
    builder = ColaPairsBuilder(reader, per_image=9)
    assert {frozenset(i for i, _ in pair) for pair in pairs(builder)} == {
        frozenset("24"), frozenset("34"),
    }  # fmt: skip
    assert builder.counts["skipped: image missing"] == 1


def test_no_pair_at_all_is_an_error(tmp_path):
    reader = corpus(tmp_path, {"1": ({"a": "red cube"}, [])})
    with refused("expected images with exchanged compounds"):
        ColaPairsBuilder(reader, benchmark=1.0).build(tmp_path / "out", progress=False)


RELATIONS = (
    "parked in front of|parked next to|playing with|lying on|looking at|shorter than|flying in|"
    "to the left of|to the right of|on top of|in front of|next to|close to|underneath|behind|"
    "beside|eating|around|above|below|under|near|on|in|of|by|at"
)


@pytest.mark.slow
def test_the_rule_on_colas_own_file(tmp_path):
    """Of Cola's 210 pairs 119 exchange an attribute of two different objects.

    Four of them exchange "posing" and "standing", which may both be true of a person.
    """
    counts = Counter()
    for _, caption, _, other in load(released(f"cola/{BENCHMARK}")):
        sides: list[list[tuple[set[str], str]]] = []
        images: dict[str, Image] = {}
        for number, text in enumerate((caption, other), 1):
            match = re.fullmatch(rf"(.+?) ({RELATIONS}) (.+)", text)
            assert match, text
            first, relation, second = match.groups()
            images[str(number)] = ({"a": first, "b": second}, [("a", relation, "b")])
            sides.append([(set(s.split()[:-1]), s.split()[-1]) for s in (first, second)])
        (a, s), (b, t) = sides[0]
        exchanged = s != t and any(
            (u, v) == (s, t) and any(x != y for x in a & d for y in b & c)
            for (c, u), (d, v) in itertools.permutations(sides[1])
        )
        built = pairs(ColaPairsBuilder(corpus(tmp_path, images, multi=9), per_image=9))
        counts["exchanged"] += exchanged
        counts["found"] += len(built)
        counts["both"] += bool(built) and exchanged
        counts["one noun"] += s == t
    assert counts == {"exchanged": 119, "found": 115, "both": 115, "one noun": 45}
