"""Queries about objects and their attributes, when they hold, and words to alter them with."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from data_builders.annotations import AnnotatedImage, AnnotatedObject
from data_builders.scenes.captions import both


@dataclass(frozen=True)
class Query:
    """Attributes stated of one object, `a_1 a_2 o`."""

    attributes: tuple[str, ...]
    name: str

    @property
    def text(self) -> str:
        """The words of the query."""
        return " ".join([*self.attributes, self.name])

    def holds_of(self, thing: AnnotatedObject) -> bool:
        """Tells whether the object has the name and all attributes."""
        return self.name == thing.name and thing.attributes.issuperset(self.attributes)


@dataclass(frozen=True)
class Pair:
    """Two queries said of two different objects of one image."""

    first: Query
    second: Query

    @property
    def text(self) -> str:
        """The words of the pair."""
        return both(self.first.text, self.second.text)


def holds(query: Query | Pair, things: Sequence[AnnotatedObject]) -> bool:
    """Tells whether a query is true of the objects of an image, all of them considered.

    Example:
        >>> def thing(color, name):
        ...     return AnnotatedObject(name, frozenset([color]), (color,), (color,), ((color,),))
        >>> things = [thing("red", "cube"), thing("blue", "sphere")]
        >>> red_cube, blue_cube = Query(("red",), "cube"), Query(("blue",), "cube")
        >>> holds(red_cube, things), holds(blue_cube, things)
        (True, False)
        >>> holds(Pair(red_cube, red_cube), things)  # one red cube is not two
        False
    """
    if isinstance(query, Query):
        return any(query.holds_of(thing) for thing in things)
    return any(
        query.first.holds_of(a) and query.second.holds_of(b)
        for a, b in itertools.permutations(things, 2)
    )


class Words:
    """The names and attributes of a corpus, drawn as often as they occur.

    Attributes at different places of a query are kept apart, so that a colour replaces a colour.
    """

    def __init__(self, images: Iterable[AnnotatedImage]) -> None:
        names: Counter[str] = Counter()
        places: dict[tuple[int, int], Counter[str]] = {}
        for thing in (t for image in images for t in image.objects):
            names[thing.name] += 1
            for stated in {thing.single, thing.multi}:
                for place, word in enumerate(stated):
                    places.setdefault((len(stated), place), Counter())[word] += 1
        self._names = _weighted(names)
        self._places = {key: _weighted(words) for key, words in places.items()}

    def altered(self, query: Query, rng: random.Random) -> Query:
        """Returns the query with one word, chosen at random, replaced by one of its kind."""
        place = rng.randrange(len(query.attributes) + 1) - 1
        if place < 0:
            return replace(query, name=_drawn(self._names, rng))
        word = _drawn(self._places[len(query.attributes), place], rng)
        changed = (*query.attributes[:place], word, *query.attributes[place + 1 :])
        return replace(query, attributes=changed)


_Weighted = tuple[list[str], list[int]]


def _weighted(words: Counter[str]) -> _Weighted:
    ordered = sorted(words)
    return ordered, list(itertools.accumulate(words[word] for word in ordered))


def _drawn(words: _Weighted, rng: random.Random) -> str:
    return rng.choices(words[0], cum_weights=words[1])[0]
