"""Cola's queries of random graphs, held against the definition of a true and of a false query."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pytest

from data_builders.corpora.annotations import AnnotatedObject
from data_builders.corpora.cola import ColaBuilder
from data_builders.corpora.cola_pairs import ColaPairsBuilder
from data_builders.corpora.gqa import GQAGraphs
from data_builders.corpora.queries import Query
from data_builders.corpora.vague import Vague
from tests.data_builders.conftest import dump, groups, truths

NAMES = ("school bus", "person", "chairs", "man", "chair", "bus", "dog")
WORDS = ("black and white", "light blue", "white", "large", "big", "grey", "gray", "blue", "old")
ALIKE = {"person": "man", "chairs": "chair", "school bus": "bus", "grey": "gray", "large": "big",
         "light blue": "blue"}  # fmt: skip
FORM = re.compile(r"(?:an? )?(.+?)(?: (on the|and an?|to the \w+ of|near|on) (.+))?")
QUERIES = ("single", "misbound", "half_wrong", "multi", "multi_misbound", "multi_half_wrong")
OFFSETS = {"left": lambda thing: 50 - thing.x, "right": lambda thing: thing.x - 50,
           "top": lambda thing: 50 - thing.y, "bottom": lambda thing: thing.y - 50}  # fmt: skip


class Thing(NamedTuple):
    """What an image shows, and where in percent; without attributes nobody annotated any."""

    name: str
    attributes: Sequence[str]
    x: int
    y: int


class Graph(NamedTuple):
    things: list[Thing]
    relations: list[tuple[int, str, int]]

    def states(self, i: int, phrase: str, j: int) -> bool:
        converse = (j, "to the left of", i)
        return (converse if "right" in phrase else (i, phrase, j)) in self.relations

    def may_be(self, i: int, phrase: str, j: int) -> bool:
        return self.states(i, phrase, j) or phrase == "near" or not self.states(j, phrase, i)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> tuple[dict[str, Graph], GQAGraphs]:
    """Graphs by image, and their reader."""
    folder = tmp_path_factory.mktemp("graphs")
    rng, graphs, content = random.Random(3), {}, {}
    for image in map(str, range(120)):
        objects, graph = {}, Graph([], [])
        count = rng.randint(1, 6)
        for i in range(count):
            attributes = rng.sample(WORDS, rng.choice((0, 1, 1, 2, 3)))
            thing = Thing(rng.choice(NAMES), attributes, *rng.choices((20, 45, 55, 80), k=2))
            graph.things.append(thing)
            objects[str(i)] = thing._asdict() | {"w": 0, "h": 0, "relations": []}
            for j in {*range(count)} - {i}:
                if rng.random() < 0.4:
                    phrase = rng.choice(("to the left of", "near", "on"))
                    graph.relations.append((i, phrase, j))
                    objects[str(i)]["relations"].append({"name": phrase, "object": str(j)})
        graphs[image] = graph
        content[image] = {"width": 100, "height": 100, "objects": objects}
        (folder / f"{image}.jpg").touch()
    return graphs, GQAGraphs(dump(folder / "graphs.json", content), folder, multi=2)


def parsed(text: str) -> Sequence[Any]:
    match = FORM.fullmatch(text)
    assert match
    return match.groups()


def described(text: str) -> tuple[list[str], str]:
    """The attributes and the name in a text such as "light blue old chairs"."""
    name = next(name for name in NAMES if text.endswith(name))
    return re.findall("|".join(WORDS), text.removesuffix(name)), name


def alike(words: Collection[str]) -> set[str]:
    return {ALIKE.get(word, word) for word in words}


def means(text: str, thing: Thing, possibly: bool) -> bool:
    """Whether a text describes a thing by the annotations or, `possibly`, may describe it."""
    attributes, name = described(text)
    if not possibly:
        return name == thing.name and {*attributes} <= {*thing.attributes}
    words = [*thing.attributes, *" ".join(thing.attributes).split()]
    known = not thing.attributes or alike(attributes) <= alike(words)
    return known and alike([name]) == alike([thing.name])


def true_of(graph: Graph, text: str, possibly: bool = False) -> bool:
    first, phrase, second = parsed(text)
    meant = [i for i, thing in enumerate(graph.things) if means(first, thing, possibly)]
    if phrase is None:
        return bool(meant)
    if phrase == "on the":
        least = -10 if possibly else 10
        return any(OFFSETS[second](graph.things[i]) > least for i in meant)
    others = [i for i, thing in enumerate(graph.things) if means(second, thing, possibly)]
    related = graph.may_be if possibly else graph.states
    pairs = [(i, j) for i, j in itertools.product(meant, others) if i != j]
    return any(phrase.startswith("and") or related(i, phrase, j) for i, j in pairs)


def queries(reader: GQAGraphs, **options: Any) -> ColaBuilder:
    """A builder of no queries but those that are asked for."""
    nothing: dict[str, Any] = dict.fromkeys(QUERIES, 0)
    return ColaBuilder(reader, **nothing | options)


@pytest.mark.parametrize("form", ["relation", "and"])
def test_true_queries_are_annotated_and_no_negative_may_be_true(drawn, form):
    graphs, reader = drawn
    every = dict.fromkeys((*QUERIES, "sides"), 9)
    builder = queries(reader, form=form, reversals=form == "relation", **every)
    built, kinds = groups(builder), Counter()
    for group in built:
        graph = graphs[group.image_ids[0]]
        assert any(truths(group).values())
        assert all(true_of(graph, text) for text in group.true_ids[0])
        for text, true in truths(group).items():
            assert true or not true_of(graph, text, possibly=True), (text, graph)
            first, phrase, second = parsed(text)
            kinds[phrase, true] += 1
            sides = (first,) if phrase in (None, "on the") else (first, second)
            assert all(words == sorted(words) for words, _ in map(described, sides)), text
    assert len(kinds) >= 8
    assert min(kinds.values()) > 10
    assert builder.counts["skipped: no query"] == len(graphs) - len(built) > 0


@pytest.mark.parametrize("form", ["relation", "and"])
def test_pairs_of_images_state_what_the_other_lacks(drawn, form):
    graphs, reader = drawn
    built = groups(ColaPairsBuilder(reader, form=form, per_image=9))
    assert len(built) > 20
    for group in built:
        for k, image in enumerate(group.image_ids):
            assert true_of(graphs[image], group.texts[k])
            assert not true_of(graphs[image], group.texts[1 - k], possibly=True), group


def test_a_half_wrong_query_has_one_word_that_the_image_lacks(drawn):
    graphs, reader = drawn
    lacking = set()
    for group in groups(queries(reader, single=9, half_wrong=3)):
        things = graphs[group.image_ids[0]].things
        shown = {thing.name for thing in things}.union(*(thing.attributes for thing in things))
        for text, true in truths(group).items():
            attributes, name = described(text)
            lacking.add((true, len({*attributes, name} - shown)))
    assert lacking == {(True, 0), (False, 1)}


@pytest.mark.parametrize("form", ["relation", "and"])
def test_pairs_with_a_twin_come_first(drawn, form):
    every, first = (groups(queries(drawn[1], form=form, multi=count)) for count in (99, 1))
    have_twin = [not all(truths(group).values()) for group in every]
    assert [len(group.texts) == 2 for group in first] == have_twin
    assert {*have_twin} == {True, False}
    for text in (text for group in every for text in group.texts if form == "and"):
        first, _, second = parsed(text)
        (words, name), (others, other) = described(first), described(second)
        assert {*words, name}.isdisjoint((*others, other))  # else twins say nearly the same


def test_attributes_may_be_read_in_other_words():
    def read(*attributes: str) -> set[str]:
        known = (attributes,)
        car = AnnotatedObject("car", frozenset(attributes), attributes, attributes, known)
        vague = Vague([car], [])
        return {word for word in (*WORDS, "light gray") if vague.may_mean(Query((word,), "car"))}

    assert read("black", "white") == {"black and white"}
    assert read("light grey") == {"grey", "gray", "light gray"}
    assert read("blue") == {"light blue"}
