"""One annotated image goes in, its queries come out: true ones and checked hard negatives.

In: objects, relations and a random generator. Out: queries. Never: a negative that is true.
"""

import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from data_builders.corpora.annotations import AnnotatedImage, AnnotatedObject, SceneReader
from data_builders.corpora.queries import Pair, Query, Side, Words, denied, holds, sides, statements
from data_builders.corpora.relations import Relations
from data_builders.corpora.vague import Vague

_ATTEMPTS = 20  # for a half-wrong query
T = TypeVar("T")
Excluded = Mapping[str, Collection[frozenset[str]]]  # object -> attributes it may not have together


class ImageQueries:
    """The queries of one image, true and false; all random choices use `rng`.

    With `related`, two-object queries state an annotated relation; with `subsets`, single-object
    queries state any attributes of an object; with `sentences`, half of the queries with a relation
    or a side are sentences.
    """

    def __init__(self, image: AnnotatedImage, excluded: Excluded, words: Words,
                 reader: SceneReader, rng: random.Random, related: bool = False,
                 subsets: bool = False, sentences: bool = False) -> None:  # fmt: skip
        self.objects, self.excluded, self.words = image.objects, excluded, words
        self.reader, self.rng, self.related, self.subsets = reader, rng, related, subsets
        self.sentences = sentences
        self.relations = Relations(image.relations, reader.exhaustive)
        self.clear = self.relations.annotated if image.clear is None else image.clear
        self.present = {word for obj in self.objects for word in (obj.name, *obj.attributes)}
        self.present.update(image.bare)
        self.vague = Vague.of(image, reader.exhaustive)

    def _allowed(self, query: Query) -> bool:
        if not self.reader.sensible(query.attributes):
            return False
        stated = frozenset(query.attributes)
        return not any(words <= stated for words in self.excluded.get(query.name, ()))

    def allowed(self, pair: Pair) -> bool:
        """Tells whether a pair states no excluded composition and no nonsense."""
        return self._allowed(pair.first) and self._allowed(pair.second)

    def _false(self, query: Query) -> bool:
        if not self._allowed(query) or holds(query, self.objects):
            return False
        return not self.vague.may_mean(query)

    def _spelled(self, query: Query) -> Query:
        return Query(self.reader.spelled(query.attributes), query.name)  # replace() is slow

    def _sample(self, queries: Iterable[T], count: int) -> list[T]:
        candidates = list(queries)
        return self.rng.sample(candidates, min(count, len(candidates)))

    def singles(self, count: int) -> list[Query]:
        """Returns true single-object queries."""
        return self._sample(self._allowed_singles(), count)

    def _allowed_singles(self) -> list[Query]:
        queries = dict.fromkeys(
            Query(stated, obj.name) for obj in self.objects for stated in self._singles(obj)
        )
        return list(filter(self._allowed, queries))

    def _singles(self, obj: AnnotatedObject) -> tuple[tuple[str, ...], ...]:
        return statements(obj) if self.subsets else (obj.single,)

    def _misbound(self, query: Query, single: bool = True) -> list[Query]:
        """Every false query that replaces a word of the given one by another object's."""
        # A query is near if it has another object's name, all of its attributes, or one of them.
        near: dict[Query, None] = {}  # once each, as checking them takes longer
        stated_by = self._singles if single else lambda obj: (obj.multi,)
        before = query.attributes
        for obj in self.objects:
            for stated in stated_by(obj):
                near |= {Query(before, obj.name): None, Query(stated, query.name): None}
                if len(stated) == len(before):
                    for k, word in enumerate(stated):
                        changed = (*before[:k], word, *before[k + 1 :])
                        near[Query(changed, query.name)] = None
        return list(dict.fromkeys(filter(self._false, map(self._spelled, near))))

    def misbound(self, query: Query, count: int) -> list[Query]:
        """Returns false queries of the image's words, near the given one."""
        return self._sample(self._misbound(query), count) if count else []

    def misbound_pairs(self, pair: Pair, count: int) -> list[Pair]:
        """Returns pairs of the image's words with one false side."""
        if not count:
            return []
        near = [replace(pair, first=q) for q in self._misbound(pair.first, single=False)]
        near += [replace(pair, second=q) for q in self._misbound(pair.second, single=False)]
        return self._sample(near, count)

    def _half_wrong(self, query: Query) -> Query | None:
        for _ in range(_ATTEMPTS):
            altered = self.words.altered(query, self.rng)
            new = {altered.name, *altered.attributes} - {query.name, *query.attributes}
            altered = self._spelled(altered)
            if new and new.isdisjoint(self.present) and self._false(altered):
                return altered
        return None

    def half_wrong(self, query: Query, count: int) -> list[Query]:
        """Returns false queries that differ from the given one by a word not in the image."""
        sampled = (self._half_wrong(query) for _ in range(count))
        return [q for q in sampled if q is not None]

    def half_wrong_pairs(self, pair: Pair, count: int) -> list[Pair]:
        """Returns pairs that differ from the given one by a word not in the image."""
        pairs = []
        for _ in range(count):
            side = self.rng.choice(("first", "second"))
            if altered := self._half_wrong(getattr(pair, side)):
                pairs.append(replace(pair, **{side: altered}))
        return pairs

    def multis(self, count: int) -> list[tuple[Pair, Pair | None]]:
        """Returns true pairs with their false twins, attributes exchanged; those with a twin first.

        Without relations both objects and all of their attributes differ. With relations the
        objects may have one name, and the twin states the same relation.
        """
        with_twin: dict[Pair, Pair | None] = {}
        without: dict[Pair, Pair | None] = {}
        for pair in self._related() if self.related else self._joined():
            if pair.first == pair.second or not self.allowed(pair):
                continue
            twin = Pair(
                replace(pair.first, attributes=pair.second.attributes),
                replace(pair.second, attributes=pair.first.attributes),
                pair.relation,
                pair.sentence,
            )
            if self.denied(twin):
                with_twin[pair] = twin
            else:
                without[pair] = None
        return [*with_twin.items(), *without.items()][:count]

    def _joined(self) -> Iterator[Pair]:
        order = self.rng.sample(self.objects, len(self.objects))
        for a, b in itertools.combinations(order, 2):
            # With a word in common the twin would say nearly the same.
            if a.name != b.name and set(a.multi).isdisjoint(b.multi):
                first = Query(a.multi, a.name)
                second = Query(b.multi, b.name)
                yield Pair(first, second)

    def _related(self) -> Iterator[Pair]:
        for i, phrase, j in self.rng.sample(self.clear, len(self.clear)):
            a, b = self.objects[i], self.objects[j]
            yield Pair(Query(a.multi, a.name), Query(b.multi, b.name), phrase, self._sentence())

    def _sentence(self) -> bool:
        return self.sentences and self.rng.random() < 0.5

    def denied(self, pair: Pair) -> bool:
        """Tells whether a pair is allowed, and false by the annotations."""
        if not self.allowed(pair) or self._may_hold(pair):
            return False
        return denied(pair, self.objects, self.relations)

    def _may_hold(self, pair: Pair) -> bool:
        """Tells whether a pair may mean an object of which the annotations do not say it."""
        first, second = self.vague.may_mean(pair.first), self.vague.may_mean(pair.second)
        if first and second:
            return True
        return (first and holds(pair.second, self.objects)) or (
            second and holds(pair.first, self.objects)
        )

    def reversal(self, pair: Pair) -> Pair | None:
        """Returns the pair with its objects exchanged, if that is false: "o_2 relation o_1"."""
        reversed_pair = replace(pair, first=pair.second, second=pair.first)
        return reversed_pair if self.denied(reversed_pair) else None

    def sides(self, count: int) -> list[tuple[Side, Side]]:
        """Returns true queries of sides, each with its false opposite.

        An opposite is false if every object that the query may mean clearly lies on this side.
        """
        stated = []
        for query in self._allowed_singles():
            if self.vague.may_mean(query):
                continue
            sides_of_meant = [sides(obj) for obj in self.objects if query.true_of(obj)]
            for name in ("left", "right", "top", "bottom"):
                if all(name in clear for clear in sides_of_meant):
                    stated.append(Side(query, name))
        both = []
        for sampled in self._sample(stated, count):
            side = replace(sampled, sentence=self._sentence())
            both.append((side, side.opposite()))
        return both

    def true_texts(self, placed: bool = False) -> frozenset[str]:
        """Returns every allowed query that is true of the image, of sides too if `placed`."""
        texts: set[str] = set()
        stated: list[Pair | Side] = list(filter(self.allowed, self._true_pairs()))
        for query, obj in self._true_singles():
            texts.add(query.text)
            if placed:
                stated += [Side(query, side) for side in sides(obj)]
        if self.sentences:
            stated += [replace(statement, sentence=True) for statement in stated]
        texts.update(statement.text for statement in stated)
        return frozenset(texts)

    def _true_singles(self) -> Iterator[tuple[Query, AnnotatedObject]]:
        for obj in self.objects:
            for stated in statements(obj) if self.subsets else obj.readings:
                if self._allowed(query := Query(stated, obj.name)):
                    yield query, obj

    def _true_pairs(self) -> Iterator[Pair]:
        if not self.related:
            stated = [Query(obj.multi, obj.name) for obj in self.objects]
            yield from itertools.starmap(Pair, itertools.permutations(stated, 2))
            return
        queries = list(map(self._multi_queries, self.objects))
        for i, phrase, j in self.relations.true:
            for first, second in itertools.product(queries[i], queries[j]):
                yield Pair(first, second, phrase)

    def _multi_queries(self, obj: AnnotatedObject) -> list[Query]:
        """The side of an object in two-object queries of the corpus."""
        stated = [obj.multi]
        if not self.reader.exhaustive:
            # In a graph another query may state fewer or other attributes of the object.
            stated += [words for words in obj.readings if len(words) <= len(obj.multi)]
        return [Query(words, obj.name) for words in dict.fromkeys(stated)]
