import random
from collections import Counter
from pathlib import Path

from data_builders.annotations import AnnotatedImage, AnnotatedObject
from data_builders.queries import Pair, Query, Words, holds


def thing(material: str, color: str, name: str) -> AnnotatedObject:
    stated = (color, material)
    return AnnotatedObject(name, frozenset(stated), stated, (color,), (stated,))


def test_pairs_need_two_objects():
    things = [thing("metal", "red", "cube"), thing("rubber", "blue", "cone")]
    red, metal = Query(("red",), "cube"), Query(("metal",), "cube")
    assert holds(red, things)
    assert holds(metal, things)
    assert not holds(Pair(red, metal), things)
    assert holds(Pair(red, metal), [*things, thing("metal", "green", "cube")])
    assert holds(Pair(Query(("blue",), "cone"), red), things)
    assert not holds(Pair(Query(("red",), "cone"), Query(("blue",), "cube")), things)


def test_words_replace_their_own_kind_as_often_as_they_occur():
    things = (thing("metal", "red", "cube"), thing("rubber", "blue", "cone"),
              thing("rubber", "blue", "cone"))  # fmt: skip
    words = Words([AnnotatedImage("a", Path("a.png"), things)])
    rng, drawn = random.Random(0), Counter()
    for _ in range(3000):
        query = words.altered(Query(("green", "glass"), "ball"), rng)
        changed = {query.name, *query.attributes} - {"green", "glass", "ball"}
        assert len(changed) == 1
        assert query.attributes[0] in ("green", "red", "blue")
        assert query.attributes[1] in ("glass", "metal", "rubber")
        drawn.update(changed)
    assert 1.6 < drawn["blue"] / drawn["red"] < 2.5
    assert 1.6 < drawn["cone"] / drawn["cube"] < 2.5
