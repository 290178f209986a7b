"""Cola's queries, and when they are true.

In: annotated objects. Out: the truth of queries, and queries with one word replaced.
"""

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from data_builders.corpora.annotations import AnnotatedImage, AnnotatedObject
from data_builders.corpora.relations import Relations
from data_builders.phrases import both, with_article


@dataclass(frozen=True)
class Query:
    """Attributes stated of one object, `a_1 a_2 o`."""

    attributes: tuple[str, ...]
    name: str

    @property
    def text(self) -> str:
        """The query as text."""
        return " ".join([*self.attributes, self.name])

    def true_of(self, obj: AnnotatedObject) -> bool:
        """Tells whether the object has the name and all attributes."""
        return self.name == obj.name and obj.attributes.issuperset(self.attributes)


@dataclass(frozen=True)
class Pair:
    """Two queries about two different objects of one image, `a_1 a_2 o_1 relation a_3 a_4 o_2`.

    Without a relation both are merely there: "a red cube and a blue sphere". A `sentence` has ARO's
    wording: "the red cube is behind the blue sphere".
    """

    first: Query
    second: Query
    relation: str | None = None
    sentence: bool = False

    @property
    def text(self) -> str:
        """The pair as text, with articles only if it has no relation (as Cola's files)."""
        if self.relation is None:
            return both(self.first.text, self.second.text)
        if self.sentence:
            return f"the {self.first.text} is {self.relation} the {self.second.text}"
        return f"{self.first.text} {self.relation} {self.second.text}"


@dataclass(frozen=True)
class Side:
    """A query and the side of the picture on which its object lies, "red cube on the left".

    As a `sentence`: "a photo of a red cube on the left of the picture".
    """

    query: Query
    side: str
    sentence: bool = False

    @property
    def text(self) -> str:
        """The query and its side as text."""
        if self.sentence:
            return f"a photo of {with_article(self.query.text)} on the {self.side} of the picture"
        return f"{self.query.text} on the {self.side}"

    def opposite(self) -> "Side":
        """Returns the same of the other side.

        Example:
            >>> Side(Query(("red",), "cube"), "left").opposite().text
            'red cube on the right'
        """
        return replace(self, side=_OPPOSITE[self.side])


_OPPOSITE = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_MARGIN = 0.1  # minimum distance from the middle, in picture widths or heights, to state a side


def sides(obj: AnnotatedObject) -> tuple[str, ...]:
    """Returns the sides of the picture on which an object's centre clearly lies.

    At least a tenth of the picture's width or height from its middle.

    Example:
        >>> sides(AnnotatedObject("cube", frozenset(), (), (), (), (0.2, 0.45)))
        ('left',)
    """
    if obj.center is None:
        return ()
    x, y = obj.center
    clear = []
    if abs(x - 0.5) >= _MARGIN:
        side = "right" if x > 0.5 else "left"
        clear.append(side)
    if abs(y - 0.5) >= _MARGIN:
        side = "bottom" if y > 0.5 else "top"
        clear.append(side)
    return tuple(clear)


def holds(query: Query | Pair, objects: Sequence[AnnotatedObject]) -> bool:
    """Tells whether a query is true of an image, given all its objects; relations aside.

    Example:
        >>> def obj(color, name):
        ...     return AnnotatedObject(name, frozenset([color]), (color,), (color,), ((color,),))
        >>> objects = [obj("red", "cube"), obj("blue", "sphere")]
        >>> red_cube, blue_cube = Query(("red",), "cube"), Query(("blue",), "cube")
        >>> holds(red_cube, objects), holds(blue_cube, objects)
        (True, False)
        >>> holds(Pair(red_cube, red_cube), objects)  # one red cube is not two
        False
    """
    if isinstance(query, Query):
        return any(map(query.true_of, objects))
    return any(True for _ in _referents(query, objects))


def denied(pair: Pair, objects: Sequence[AnnotatedObject], relations: Relations) -> bool:
    """Tells whether a pair is false by the annotations, whichever objects it means.

    Example:
        >>> def obj(color, name):
        ...     return AnnotatedObject(name, frozenset([color]), (color,), (color,), ((color,),))
        >>> objects = [obj("red", "car"), obj("blue", "car")]
        >>> red, blue = Query(("red",), "car"), Query(("blue",), "car")
        >>> known = Relations([(0, "behind", 1)], exhaustive=False)
        >>> denied(Pair(blue, red, "behind"), objects, known)
        True
        >>> denied(Pair(blue, red, "near"), objects, known)  # nobody annotated it
        False
    """
    if pair.relation is None:
        return not holds(pair, objects)
    return all(relations.denied(i, pair.relation, j) for i, j in _referents(pair, objects))


def _referents(pair: Pair, objects: Sequence[AnnotatedObject]) -> Iterator[tuple[int, int]]:
    """The indices of any two objects that a pair may mean, relation aside."""
    for (i, a), (j, b) in itertools.permutations(enumerate(objects), 2):
        if pair.first.true_of(a) and pair.second.true_of(b):
            yield i, j


def statements(obj: AnnotatedObject) -> tuple[tuple[str, ...], ...]:
    """Returns all attributes that a single-object query can state of an object, in word order.

    Example:
        >>> cube = AnnotatedObject("cube", frozenset(), ("red", "metal"), (), (("red", "metal"),))
        >>> statements(cube)
        (('red', 'metal'), ('red',), ('metal',))
    """
    lengths = range(1, len(obj.single) + 1)
    subsets = (itertools.combinations(obj.single, n) for n in lengths)
    return tuple(dict.fromkeys((*obj.readings, *itertools.chain.from_iterable(subsets))))


class Words:
    """The names and attributes of a corpus by frequency; a colour replaces a colour.

    With `subsets` queries state any of an object's `statements`.
    """

    def __init__(self, images: Iterable[AnnotatedImage], subsets: bool = False) -> None:
        names: Counter[str] = Counter()
        # Words by the length of the query and their position in it: of one kind in scenes.
        attributes: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        for obj in itertools.chain(*(image.objects for image in images)):
            names[obj.name] += 1
            queries = {obj.single, obj.multi}
            if subsets:
                queries.update(statements(obj))
            for stated in queries:
                for position, word in enumerate(stated):
                    attributes[len(stated), position][word] += 1
        self._names = _weighted(names)
        self._attributes = {key: _weighted(words) for key, words in attributes.items()}

    def altered(self, query: Query, rng: random.Random) -> Query:
        """Returns the query with one word, chosen at random, replaced by one of its kind."""
        position = rng.randrange(len(query.attributes) + 1) - 1
        if position < 0:
            return replace(query, name=_sample(self._names, rng))
        words = list(query.attributes)
        words[position] = _sample(self._attributes[len(words), position], rng)
        return replace(query, attributes=tuple(words))


_Weighted = tuple[list[str], list[int]]


def _weighted(words: Counter[str]) -> _Weighted:
    ordered = sorted(words)
    return ordered, list(itertools.accumulate(words[word] for word in ordered))


def _sample(words: _Weighted, rng: random.Random) -> str:
    return rng.choices(words[0], cum_weights=words[1])[0]
