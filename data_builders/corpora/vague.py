"""What the annotations of a graph leave open: unnamed attributes and other words for a thing.

In: annotated objects, and names of objects without attributes. Out: which queries may mean one of
them all the same. Never: a query that the annotations state.
"""

from collections.abc import Iterable, Sequence

from data_builders.corpora.annotations import AnnotatedObject
from data_builders.corpora.queries import Query
from vlmtune.language.lexicon import synonyms

SPELLINGS = {"grey": "gray", "gray": "grey"}


class Vague:
    """The objects of one image as others may describe them.

    An object without annotated attributes may have any. Another person may name a thing or an
    attribute otherwise: "person" for "man", "cups" for "cup", "big" for "large", "blue" for "light
    blue".

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
        self._bare = rephrased(bare)
        self._described = []
        for obj in objects:
            self._described.append((obj, rephrased([obj.name]), rephrased(obj.attributes)))

    def may_mean(self, query: Query) -> bool:
        """Whether the query may mean an object of which the annotations do not say it."""
        if query.name in self._bare:
            return True
        for obj, names, attributes in self._described:
            is_described = query.name in names and attributes.issuperset(query.attributes)
            if is_described and not query.true_of(obj):
                return True
        return False


def rephrased(words: Iterable[str]) -> frozenset[str]:
    """Returns the words, and other words for the same."""
    wordings: set[str] = set()
    for word in words:
        wordings |= {word, f"{word}s", f"{word}es", f"light {word}", f"dark {word}"}
        wordings |= {word.removesuffix("s"), word.removesuffix("es")}
        wordings.add(word.removeprefix("light ").removeprefix("dark "))
        wordings.add(SPELLINGS.get(word, word))
        wordings |= synonyms().get(word, frozenset())
    return frozenset(wordings)
