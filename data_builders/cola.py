"""Annotated images go in, Cola's training queries come out; hard negatives are always false."""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from data_builders.annotations import AnnotatedImage, SceneReader, measured_images, parse_json
from data_builders.queries import Pair, Query, Words, holds
from data_builders.shard_builder import MISSING, Record, ShardBuilder, image_group
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError

_ATTEMPTS = 20  # for a half-wrong query
T = TypeVar("T")
Composition = tuple[str, str]  # attribute, object


class ColaBuilder(ShardBuilder):
    """One image with true queries and their hard negatives a record (Cola, sections 3 and 5.3).

    Hard negatives bind the image's words wrongly: an attribute of one object stated of another
    ("misbound"), or the attributes of a two-object query exchanged (its "twin"). Half-wrong queries
    have one word that is not in the image. The text of a query is its id.

    Args:
        annotations: The reader of the scene annotations, or its spec.
        exclude: `{"unseen": [[attribute, object], ...]}`; no query states these compositions.
        measured: JSON files of benchmarks; the images they name are left out.
        single: Maximum number of true single-object queries an image.
        misbound: Maximum number of misbound queries for each of them.
        half_wrong: Maximum number of half-wrong queries for each of them.
        multi: Maximum number of true two-object queries an image, those with a false twin first.
        twins: Whether two-object queries come with their swapped twins.
        multi_misbound: Maximum number of queries with a misbound object per two-object query.
        multi_half_wrong: Maximum number of queries with a half-wrong object per two-object query.
        seed: Seed of the sampled queries.
    """

    def __init__(self, annotations: SceneReader | dict[str, Any], exclude: Path | None = None,
                 measured: Sequence[Path] = (), single: int = 2, misbound: int = 1,
                 half_wrong: int = 1, multi: int = 2, twins: bool = True, multi_misbound: int = 1,
                 multi_half_wrong: int = 0, seed: int = 0, missing: float = MISSING,
                 records_per_shard: int = 1000) -> None:  # fmt: skip
        super().__init__(records_per_shard, missing)
        numbers = (single, misbound, half_wrong, multi, multi_misbound, multi_half_wrong)
        if min(numbers) < 0 or single + multi == 0:
            raise UserError(
                "expected numbers of queries >= 0 and single or multi above 0, got "
                f"{single=}, {misbound=}, {half_wrong=}, {multi=}, {multi_misbound=}, "
                f"{multi_half_wrong=}: raise them"
            )
        if isinstance(annotations, dict):
            annotations = instantiate(annotations, SceneReader)
        # The spec records all arguments of the reader, defaults included.
        self.annotations = self.init_args["annotations"] = annotations
        self.exclude = None if exclude is None else Path(exclude)
        self.measured = tuple(map(Path, measured))
        self.single, self.misbound, self.half_wrong = single, misbound, half_wrong
        self.multi, self.twins, self.seed = multi, twins, seed
        self.multi_misbound, self.multi_half_wrong = multi_misbound, multi_half_wrong

    @override
    def spec(self) -> Spec:
        # Options that do not change the result are left out, so that existing shards are reused.
        spec = super().spec()
        idle = {"measured"} if not self.measured else set()
        idle |= {"twins"} if self.twins else set()
        return {**spec, "init_args": {k: v for k, v in spec["init_args"].items() if k not in idle}}

    @override
    def sources(self) -> Mapping[str, Path]:
        files = [*([self.exclude] if self.exclude else []), *self.measured]
        return {**self.annotations.sources(), **{path.name: path for path in files}}

    @override
    def records(self) -> Iterator[Record]:
        excluded: frozenset[Composition] = frozenset()
        if self.exclude is not None:
            excluded = parse_json(self.exclude, "a composition list", _unseen)
        measured = measured_images(self.measured)
        annotated = list(self.annotations.images())
        images = [image for image in annotated if image.id not in measured]
        self.counts["skipped: measured"] += len(annotated) - len(images)
        words = Words(images)
        for image in images:
            if not self.exists(image.file):
                continue
            rng = random.Random(f"{self.seed}:{image.id}")
            queries = _Queries(image, excluded, words, self.annotations, rng)
            texts = self._texts(queries)
            true = sum(texts.values())
            if not true:
                self.counts["skipped: no query"] += 1
                continue
            self.counts["queries: true"] += true
            self.counts["queries: false"] += len(texts) - true
            exhaustive = self.annotations.exhaustive
            yield image_group(image.id, texts, queries.true_texts(), exhaustive), [image.file]

    def _texts(self, queries: "_Queries") -> dict[str, bool]:
        texts: dict[str, bool] = {}
        for query in queries.singles(self.single):
            texts[query.text] = True
            false = [
                *queries.misbound(query, self.misbound),
                *queries.half_wrong(query, self.half_wrong),
            ]
            texts |= {negative.text: False for negative in false}
        for pair, twin in queries.multis(self.multi):
            texts[pair.text] = True
            negatives = [
                *([twin] if twin is not None and self.twins else []),
                *queries.misbound_pairs(pair, self.multi_misbound),
                *queries.half_wrong_pairs(pair, self.multi_half_wrong),
            ]
            texts |= {negative.text: False for negative in negatives}
        return texts


def _unseen(content: Any) -> frozenset[Composition]:
    return frozenset((str(a), str(o)) for a, o in content["unseen"])


class _Queries:
    """The queries of one image, true and false; all random choices use `rng`."""

    def __init__(self, image: AnnotatedImage, excluded: frozenset[Composition], words: Words,
                 reader: SceneReader, rng: random.Random) -> None:  # fmt: skip
        self.objects, self.excluded, self.words = image.objects, excluded, words
        self.reader, self.rng = reader, rng
        self.present = {word for obj in self.objects for word in (obj.name, *obj.attributes)}

    def _allowed(self, query: Query) -> bool:
        repeats = len(set(query.attributes)) < len(query.attributes)
        return not repeats and all((a, query.name) not in self.excluded for a in query.attributes)

    def _both_allowed(self, pair: Pair) -> bool:
        return self._allowed(pair.first) and self._allowed(pair.second)

    def _false(self, query: Query) -> bool:
        return self._allowed(query) and not holds(query, self.objects)

    def _spelled(self, query: Query) -> Query:
        return replace(query, attributes=self.reader.spelled(query.attributes))

    def _sample(self, queries: Iterable[T], count: int) -> list[T]:
        candidates = list(queries)
        return self.rng.sample(candidates, min(count, len(candidates)))

    def singles(self, count: int) -> list[Query]:
        """Returns true single-object queries."""
        queries = dict.fromkeys(Query(obj.single, obj.name) for obj in self.objects)
        return self._sample(filter(self._allowed, queries), count)

    def _misbound(self, query: Query, single: bool = True) -> list[Query]:
        """Every false query that replaces a word of the given one by another object's."""
        queries: dict[Query, None] = {}
        for obj in self.objects:
            stated = obj.single if single else obj.multi
            near = [Query(query.attributes, obj.name), Query(stated, query.name)]
            if len(stated) == len(query.attributes):
                near += [
                    replace(
                        query, attributes=(*query.attributes[:k], w, *query.attributes[k + 1 :])
                    )
                    for k, w in enumerate(stated)
                ]
            queries |= dict.fromkeys(filter(self._false, map(self._spelled, near)))
        return list(queries)

    def misbound(self, query: Query, count: int) -> list[Query]:
        """Returns false queries of the image's words, near the given one."""
        return self._sample(self._misbound(query), count)

    def misbound_pairs(self, pair: Pair, count: int) -> list[Pair]:
        """Returns pairs of the image's words with one false side."""
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
        """Returns true pairs of different names and attributes, with their twins where false."""
        with_twin: dict[Pair, Pair | None] = {}
        without: dict[Pair, Pair | None] = {}
        order = self.rng.sample(self.objects, len(self.objects))
        for a, b in itertools.combinations(order, 2):
            pair = Pair(Query(a.multi, a.name), Query(b.multi, b.name))
            if a.name == b.name or set(a.multi) & set(b.multi) or not self._both_allowed(pair):
                continue
            twin = Pair(Query(b.multi, a.name), Query(a.multi, b.name))
            if self._both_allowed(twin) and not holds(twin, self.objects):
                with_twin[pair] = twin
            else:
                without[pair] = None
        return [*with_twin.items(), *without.items()][:count]

    def true_texts(self) -> frozenset[str]:
        """Returns every allowed query that is true of the image."""
        singles = (Query(reading, obj.name) for obj in self.objects for reading in obj.readings)
        stated = [Query(obj.multi, obj.name) for obj in self.objects]
        pairs = (Pair(a, b) for a, b in itertools.permutations(stated, 2))
        return frozenset(q.text for q in filter(self._allowed, singles)) | frozenset(
            p.text for p in filter(self._both_allowed, pairs)
        )
