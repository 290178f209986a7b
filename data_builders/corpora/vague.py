"""What the annotations of a graph leave open: unnamed attributes and other words for a thing.

In: annotated objects, and names of objects without attributes. Out: which queries may mean one of
them all the same. Never: a query that the annotations state.
"""

from collections.abc import Iterable, Sequence

from data_builders.corpora.annotations import AnnotatedImage, AnnotatedObject
from data_builders.corpora.queries import Query
from vlmtune.language.lexicon import synonyms


class Vague:
    """The objects of one image as others may describe them.

    An object without annotated attributes may have any. Another person may name a thing or an
    attribute otherwise: "person" for "man", "cups" for "cup", "big" for "large", "blue" for "light
    blue", "bus" for "school bus", "white" for "black and white".

    Args:
        objects: The objects with attributes.
        bare: Names of the objects without.

    Example:
        >>> car = AnnotatedObject("car", frozenset(["gray"]), ("gray",), ("gray",), (("gray",),))
        >>> vague = Vague([car], ["truck"])
        >>> [vague.may_mean(Query((word,), name)) for word, name in
        ...  (("grey", "car"), ("red", "car"), ("red", "truck"), ("gray", "car"))]
        [True, False, True, False]
    """

    def __init__(self, objects: Sequence[AnnotatedObject], bare: Iterable[str]) -> None:
        self._bare = _Named(bare)
        self._described = []
        for obj in objects:
            # A "light car" that is blue reads like a blue and light "car", and "black" and "white"
            # like "black and white".
            words = " ".join([*obj.attributes, obj.name, "and"]).split()
            wordings = rephrased([*obj.attributes, *words])
            self._described.append((obj, _Named([obj.name]), wordings))

    @classmethod
    def of(cls, image: AnnotatedImage, exhaustive: bool) -> "Vague":
        """Returns what the annotations of an image leave open: nothing if they are exhaustive."""
        return cls((), ()) if exhaustive else cls(image.objects, image.bare)

    def may_mean(self, query: Query) -> bool:
        """Whether the query may mean an object of which the annotations do not say it."""
        if self._bare.may_be(query.name):
            return True
        for obj, named, wordings in self._described:
            if not named.may_be(query.name) or query.true_of(obj):
                continue
            if all(_matches(attribute, wordings) for attribute in query.attributes):
                return True
        return False


def _matches(attribute: str, wordings: frozenset[str]) -> bool:
    """Whether an attribute is among the wordings, whole or word by word."""
    return attribute in wordings or wordings.issuperset(attribute.split())


class _Named:
    """Things with some names: a "school bus" is a bus, and a "bus" may be a school bus."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        self._names = rephrased(names)
        self._kinds = rephrased(kind for name in names for kind in _kinds(name))

    def may_be(self, name: str) -> bool:
        """Whether one of the things may have this name."""
        return name in self._kinds or not self._names.isdisjoint(_kinds(name))


def _kinds(name: str) -> list[str]:
    """A name and what it is a kind of: "old school bus", "school bus" and "bus"."""
    words = name.split()
    return [" ".join(words[k:]) for k in range(len(words))]


def rephrased(words: Iterable[str]) -> frozenset[str]:
    """Returns the words, and other words for the same."""
    wordings: set[str] = set()
    for word in words:
        wordings |= {word, f"{word}s", f"{word}es", f"light {word}", f"dark {word}"}
        wordings |= {word.removesuffix("s"), word.removesuffix("es")}
        wordings |= synonyms().get(word, frozenset())
    return frozenset(wordings)
