import random
from collections import Counter
from pathlib import Path

from data_builders.corpora.annotations import AnnotatedImage, AnnotatedObject
from data_builders.corpora.queries import Pair, Query, Words, holds


def obj(material: str, color: str, name: str) -> AnnotatedObject:
    stated = (color, material)
    return AnnotatedObject(name, frozenset(stated), stated, (color,), (stated,))


def test_words_replace_their_kind_as_often_as_they_occur():
    objects = (obj("metal", "red", "cube"), obj("rubber", "blue", "cone"),
              obj("rubber", "blue", "cone"))  # fmt: skip
    words = Words([AnnotatedImage("a", Path("a.png"), objects)])
    rng, sampled = random.Random(0), Counter()
    for _ in range(3000):
        query = words.altered(Query(("green", "glass"), "ball"), rng)
        changed = {query.name, *query.attributes} - {"green", "glass", "ball"}
        assert len(changed) == 1
        assert query.attributes[0] in ("green", "red", "blue")
        assert query.attributes[1] in ("glass", "metal", "rubber")
        sampled.update(changed)
    assert 1.6 < sampled["blue"] / sampled["red"] < 2.5
    assert 1.6 < sampled["cone"] / sampled["cube"] < 2.5


def test_one_object_is_not_two():
    cube = obj("metal", "red", "cube")
    red_cube = Query(("red",), "cube")
    assert holds(red_cube, [cube])
    assert not holds(Pair(red_cube, red_cube), [cube])
    assert holds(Pair(red_cube, red_cube), [cube, cube])
