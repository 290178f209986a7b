"""Annotated relations go in; which relations are true and which are false comes out.

In: (subject, phrase, object) by index. Out: truth of any such triple. Never: an image or a text.
"""

from collections.abc import Iterable

Relation = tuple[int, str, int]  # index of the subject, phrase, index of the object

# If a is <key> b, then b is <value> a.
CONVERSES = {"to the left of": "to the right of", "above": "below", "in front of": "behind",
             "larger than": "smaller than", "taller than": "shorter than"}  # fmt: skip
CONVERSES |= {value: key for key, value in CONVERSES.items()}

# A phrase with a word that begins so may hold in both directions: "next to", "playing with".
_MUTUAL = """
across adjacent adjoin against along alongside and apart around attach between beside by close
connect cross facing faces far fight follow hug intersect join kiss like link look marr match meet
mix near next opposite other overlap parallel play race racing resembl same side similar smil sniff
speak star surround talk touch toward watch with
"""
MUTUAL = tuple(_MUTUAL.split())


def mutual(phrase: str) -> bool:
    """Tells whether a relation may hold in both directions.

    Example:
        >>> [mutual(phrase) for phrase in ("standing next to", "opposite", "touches", "married to")]
        [True, True, True, True]
        >>> mutual("to the left of"), mutual("on"), mutual("wearing")
        (False, False, False)
    """
    return any(word.startswith(MUTUAL) for word in phrase.split())


class Relations:
    """The relations of one image's objects.

    Args:
        annotated: The annotated relations.
        exhaustive: Whether every relation of the corpus' phrases is annotated. Otherwise a relation
            is false only where the annotations contradict it: "on" in one direction makes "on" in
            the other direction false.

    Example:
        >>> relations = Relations([(0, "on", 1), (1, "above", 2), (0, "near", 2)], exhaustive=False)
        >>> relations.holds(2, "below", 1), relations.denied(2, "below", 1)
        (True, False)
        >>> relations.denied(1, "on", 0)  # what is under a thing is not on it
        True
        >>> relations.denied(2, "near", 0), relations.denied(0, "above", 2)  # not known
        (False, False)
    """

    def __init__(self, annotated: Iterable[Relation], exhaustive: bool) -> None:
        self.annotated = tuple(dict.fromkeys(annotated))
        self.exhaustive = exhaustive
        # What is left of a thing has the thing on its right, annotated or not.
        converses = [(j, CONVERSES[r], i) for i, r, j in self.annotated if r in CONVERSES]
        both_ways = dict.fromkeys((*self.annotated, *converses))
        self.true: tuple[Relation, ...] = tuple(both_ways)
        self._true = frozenset(self.true)

    def holds(self, subject: int, phrase: str, other: int) -> bool:
        """Tells whether the annotations state a relation, or its converse."""
        return (subject, phrase, other) in self._true

    def denied(self, subject: int, phrase: str, other: int) -> bool:
        """Tells whether a relation is false by the annotations."""
        if self.holds(subject, phrase, other):
            return False
        return self.exhaustive or (not mutual(phrase) and self.holds(other, phrase, subject))
