"""The truth of nouns and relations in a scene.

In: a scene and nouns. Out: true, false, or None for what is undecided.

A relation is true where it stands out (`captions.clear_relation`), false where it misses even
CLEVR's bound (`sampling.relations`), and undecided in between.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product

from data_builders.phrases import ATTRIBUTE_ORDER, both, related, with_article
from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.sampling import WorldSpec, relations
from data_builders.worlds.scenes.scene import Scene, SceneObject

Truth = bool | None
Edge = tuple[int, str, int]


@dataclass(frozen=True)
class Noun:
    """A shape with attributes (kind, value), the ones in `negated` with a "not": "not red cube"."""

    shape: str
    attributes: tuple[tuple[str, str], ...] = ()
    negated: frozenset[str] = frozenset()

    @classmethod
    def of(cls, obj: SceneObject, kinds: Iterable[str] = ("color",)) -> "Noun":
        """Returns the noun that states these attributes of an object."""
        return cls(obj.shape, tuple((kind, getattr(obj, kind)) for kind in kinds))

    def referents(self, scene: Scene) -> list[int]:
        """Returns the indices of the objects that the noun may refer to."""
        return [k for k, obj in enumerate(scene.objects) if self.matches(obj)]

    def absent_from(self, scene: Scene) -> bool:
        """Tells whether the scene certainly lacks the noun."""
        return not self.referents(scene)

    def matches(self, obj: SceneObject) -> bool:
        """Tells whether the noun is true of the object."""
        if obj.shape != self.shape:
            return False
        for kind, value in self.attributes:
            has = getattr(obj, kind) == value
            if has == (kind in self.negated):
                return False
        return True

    def get(self, kind: str) -> str | None:
        """Returns the stated value of the kind, which may be "shape"."""
        return self.shape if kind == "shape" else dict(self.attributes).get(kind)

    def replaced(self, kind: str, value: str) -> "Noun":
        """Returns the noun with this value of the kind, stated before or not."""
        if kind == "shape":
            return replace(self, shape=value)
        attributes = dict(self.attributes) | {kind: value}
        return replace(self, attributes=tuple(attributes.items()))

    def negating(self, kind: str) -> "Noun":
        """Returns the noun with one of its attributes negated."""
        return replace(self, negated=self.negated | {kind})

    def __str__(self) -> str:
        """The words, in the order of `captions.ATTRIBUTE_ORDER`.

        Example:
            >>> str(Noun("cube", (("material", "metal"), ("color", "red"))).negating("color"))
            'not red metal cube'
        """
        words: list[str] = []
        for kind, value in sorted(self.attributes, key=lambda a: ATTRIBUTE_ORDER.index(a[0])):
            words += ["not"] * (kind in self.negated) + [value]
        return " ".join([*words, self.shape])


def stated_attributes(spec: WorldSpec) -> dict[str, tuple[str, ...]]:
    """Returns the attributes that vary in a world and their values; "plain" is never stated."""
    stated = {}
    for kind, values in spec.attributes().items():
        stated[kind] = tuple(value for value in values if value != "plain")
    return stated


def constant_words(spec: WorldSpec) -> set[str]:
    """Returns the sizes, materials and textures that every object of a world has.

    Example:
        >>> constant_words(WorldSpec(sizes=("large",)))
        {'large'}
    """
    words: set[str] = set()
    for values in (spec.sizes, spec.materials, spec.textures):
        if len(values) == 1:
            words.update(values)
    return words


def stated_kinds(obj: SceneObject, kinds: Iterable[str]) -> list[str]:
    """Returns the kinds of attributes that a caption may state of the object."""
    return [kind for kind in kinds if getattr(obj, kind) != "plain"]


def exists(scene: Scene, *nouns: Noun) -> Truth:
    """Tells whether the scene has a different object for each of the nouns.

    None where each noun has a referent but two of them share a sole one.

    Example:
        >>> cube = SceneObject("cube", "red", "metal", "plain", "large", (0.0, 0.0, 0.5), 0.75)
        >>> exists(Scene((cube,)), Noun("cube")), exists(Scene((cube,)), Noun("cone"))
        (True, False)
        >>> exists(Scene((cube,)), Noun("cube"), Noun("cube", (("color", "red"),))) is None
        True
    """
    candidates = [noun.referents(scene) for noun in nouns]
    if not all(candidates):
        return False
    # Some choice of one candidate of each noun has no object twice.
    if any(len(set(chosen)) == len(nouns) for chosen in product(*candidates)):
        return True
    return None


# Writers of captions ask hundreds of times about one scene before they turn to the next.
_relations = lru_cache(maxsize=8)(relations)


def relation_holds(scene: Scene, first: Noun, relation: str, second: Noun) -> Truth:
    """Tells whether an object of the first noun has the relation to one of the second."""
    both = product(first.referents(scene), second.referents(scene))
    pairs = [(i, j) for i, j in both if i != j]
    if any(clear_relation(scene, i, j) == relation for i, j in pairs):
        return True
    table = _relations(scene)[relation]
    if any(i in table[j] for i, j in pairs):
        return None
    return False


def object_count(scene: Scene, shape: str | None) -> int:
    """Returns the number of objects, of one shape or in all."""
    return sum(shape in (None, obj.shape) for obj in scene.objects)


def clear_relations(scene: Scene, indices: Iterable[int] | None = None) -> list[Edge]:
    """Returns every relation that stands out among the objects, in both directions."""
    chosen = range(len(scene.objects)) if indices is None else indices
    edges = []
    for i, j in permutations(chosen, 2):
        relation = clear_relation(scene, i, j)
        if relation is not None:
            edges.append((i, relation, j))
    return edges


def colour_fields(first: Noun, second: Noun) -> dict[str, str | None]:
    """Returns `{shape}` and `{color}` of one noun, `{other}` and `{hue}` of the other."""
    return {
        "shape": first.shape,
        "color": first.get("color"),
        "other": second.shape,
        "hue": second.get("color"),
    }


@dataclass(frozen=True)
class Statement:
    """One object or two, with the relation of the first to the second, if any."""

    nouns: tuple[Noun, ...]
    relation: str | None = None

    def holds(self, scene: Scene) -> Truth:
        """Tells whether it is true of a scene; None where that is undecided."""
        if self.relation is None:
            return exists(scene, *self.nouns)
        first, second = self.nouns
        return relation_holds(scene, first, self.relation, second)

    def with_noun(self, position: int, noun: Noun) -> "Statement":
        """Returns the statement with another noun at a position."""
        nouns = list(self.nouns)
        nouns[position] = noun
        return replace(self, nouns=tuple(nouns))

    def __str__(self) -> str:
        """The words.

        Example:
            >>> str(Statement((Noun("cube"), Noun("cone")), "left"))
            'a cube to the left of a cone'
        """
        if len(self.nouns) == 1:
            return with_article(self.nouns[0])
        if self.relation is None:
            return both(*self.nouns)
        first, second = self.nouns
        return related(first, self.relation, second)
