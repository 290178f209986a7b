"""What can be said of a scene, and whether it is so, by the exact scene graph.

Truth has three values. A relation is true where it stands out (`captions.clear_relation`) and false
where not even CLEVR's bound is met (`grammar.relations`); between the two nobody should say
anything, and the answer is None.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from data_builders.scenes.captions import ATTRIBUTE_ORDER, PHRASES, clear_relation
from data_builders.scenes.grammar import Scene, SceneObject, WorldSpec, relations

KINDS = ("color", "material", "size", "texture")
Truth = bool | None


@dataclass(frozen=True)
class Noun:
    """A shape with some attributes.

    Attributes:
        shape: The shape.
        said: Pairs (kind, value) of attributes.
        denied: Kinds of `said` that are denied: "not red cube".
    """

    shape: str
    said: tuple[tuple[str, str], ...] = ()
    denied: frozenset[str] = frozenset()

    def matches(self, thing: SceneObject) -> bool:
        """Tells whether the object is one."""
        return thing.shape == self.shape and all(
            (getattr(thing, kind) == value) != (kind in self.denied) for kind, value in self.said
        )

    def get(self, kind: str) -> str | None:
        """Returns what is said of the kind; "shape" is one too."""
        return self.shape if kind == "shape" else dict(self.said).get(kind)

    def having(self, kind: str, value: str) -> "Noun":
        """Returns the same noun with another value of the kind, said or not before."""
        if kind == "shape":
            return replace(self, shape=value)
        return replace(self, said=tuple((dict(self.said) | {kind: value}).items()))

    def denying(self, kind: str) -> "Noun":
        """Returns the same noun with one of its attributes denied."""
        return replace(self, denied=self.denied | {kind})

    def __str__(self) -> str:
        """The words, in the order of `captions.ATTRIBUTE_ORDER`.

        Example:
            >>> str(Noun("cube", (("material", "metal"), ("color", "red"))).denying("color"))
            'not red metal cube'
        """
        words: list[str] = []
        for kind, value in sorted(self.said, key=lambda pair: ATTRIBUTE_ORDER.index(pair[0])):
            words += ["not"] * (kind in self.denied) + [value]
        return " ".join([*words, self.shape])


def noun(thing: SceneObject, kinds: Iterable[str] = ("color",)) -> Noun:
    """Returns an object as a noun that says some of its attributes."""
    return Noun(thing.shape, tuple((kind, getattr(thing, kind)) for kind in kinds))


def article(thing: Noun) -> str:
    """Returns the noun with its article.

    Example:
        >>> article(Noun("torus"))
        'a torus'
    """
    words = str(thing)
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def worded(first: Noun, relation: str, second: Noun) -> str:
    """Returns a relational caption; `relation` is a key of `captions.PHRASES`.

    Example:
        >>> worded(Noun("cube"), "left", Noun("cone"))
        'a cube to the left of a cone'
    """
    return f"{article(first)} {PHRASES[relation]} {article(second)}"


def varied(spec: WorldSpec) -> dict[str, tuple[str, ...]]:
    """Returns the attributes worth saying in a world and their values; nobody says "plain"."""
    values = {
        "color": spec.colors,
        "material": spec.materials,
        "size": spec.sizes,
        "texture": spec.textures,
    }
    return {
        kind: tuple(value for value in of_kind if value != "plain")
        for kind, of_kind in values.items()
        if len(of_kind) > 1
    }


def sayable(thing: SceneObject, kinds: Iterable[str]) -> list[str]:
    """Returns the kinds of attributes that one would say of the object."""
    return [kind for kind in kinds if getattr(thing, kind) != "plain"]


def found(scene: Scene, what: Noun) -> list[int]:
    """Returns the objects that the noun may mean."""
    return [k for k, thing in enumerate(scene.objects) if what.matches(thing)]


def there(scene: Scene, *nouns: Noun) -> Truth:
    """Tells whether the scene has objects of all these nouns, one for each.

    None where only one object stands for two of them.

    Example:
        >>> cube = SceneObject("cube", "red", "metal", "plain", "large", (0.0, 0.0, 0.5), 0.75)
        >>> there(Scene((cube,)), Noun("cube")), there(Scene((cube,)), Noun("cone"))
        (True, False)
        >>> there(Scene((cube,)), Noun("cube"), Noun("cube", (("color", "red"),))) is None
        True
    """
    means = [found(scene, what) for what in nouns]
    if not all(means):
        return False
    fits = any(
        all(k in own for k, own in zip(chosen, means, strict=True))
        for chosen in permutations(range(len(scene.objects)), len(nouns))
    )
    return True if fits else None


def related(scene: Scene, first: Noun, relation: str, second: Noun) -> Truth:
    """Tells whether some object of the first noun stands so to some object of the second."""
    pairs = [(i, j) for i in found(scene, first) for j in found(scene, second) if i != j]
    if any(clear_relation(scene, i, j) == relation for i, j in pairs):
        return True
    table = relations(scene)[relation]
    return None if any(i in table[j] for i, j in pairs) else False


def counted(scene: Scene, shape: str | None) -> int:
    """Returns how many objects there are, of one shape or of all."""
    return sum(shape in (None, thing.shape) for thing in scene.objects)


def all_of(truths: Iterable[Truth]) -> Truth:
    """Returns whether all hold: one that does not settles it, one that is unsettled leaves it.

    Example:
        >>> all_of([True, None]), all_of([None, False]), all_of([True, True])
        (None, False, True)
    """
    truths = list(truths)
    return False if False in truths else None if None in truths else True


def edges(scene: Scene, among: Sequence[int]) -> list[tuple[int, str, int]]:
    """Returns every relation that stands out among the objects, both ways round."""
    return [
        (i, relation, j)
        for i in among
        for j in among
        if i != j and (relation := clear_relation(scene, i, j))
    ]


def exchangeable(
    scene: Scene, i: int, j: int, kind: str
) -> tuple[tuple[Noun, Noun], tuple[Noun, Noun]] | None:
    """Returns two nouns and the same with one attribute exchanged, where that makes them false."""
    a, b = scene.objects[i], scene.objects[j]
    if a.shape == b.shape or not all(sayable(thing, [kind]) for thing in (a, b)):
        return None
    first, second = noun(a, [kind]), noun(b, [kind])
    swapped = first.having(kind, getattr(b, kind)), second.having(kind, getattr(a, kind))
    return ((first, second), swapped) if there(scene, *swapped) is False else None
