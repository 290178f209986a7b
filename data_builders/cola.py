"""Cola's training queries (Ray et al. 2023, sections 3 and 5.3) from scene annotations."""

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data_builders.annotations import (
    AnnotatedImage,
    AnnotatedObject,
    SceneReader,
    parsed,
    read_json,
)
from data_builders.common import Record, ShardBuilder
from data_builders.images import LIMIT, Presence
from data_builders.measured import measured_images
from data_builders.queries import Pair, Query, Words, holds
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError
from vlmtune.types import Group

_TRIES = 20  # draws for a half-wrong query


class ColaBuilder(ShardBuilder):
    """One image with true queries and their hard negatives a record.

    Hard negatives are made of the image's own words, bound wrongly: an attribute of one object said
    of another ("misbound"), or, of a two-object query, the attributes exchanged (its swapped twin,
    given wherever it is false). Half-wrong queries have one word that is not in the image. Every
    negative is checked against all objects. The text of a query is its id; `true_ids` has every
    single-object query and every two-object query that is true of the image.

    Args:
        annotations: The reader of the scene annotations, or its spec.
        exclude: `compositions.json` with `{"unseen": [[attribute, object], ...]}`: no query, true
            or false, states one of these compositions.
        measured: JSON files of benchmarks; the images they name are left out.
        single: True single-object queries an image, at most.
        misbound: Misbound queries for each of them, at most.
        half_wrong: Half-wrong queries for each of them, at most.
        multi: True two-object queries an image, at most; those with a false twin come first.
        twins: Whether two-object queries come with their swapped twins; other negatives have
            numbers of their own.
        multi_misbound: For each of them, at most so many queries one of whose two objects is
            misbound.
        multi_half_wrong: For each of them, at most so many queries one of whose two objects is
            half-wrong.
        seed: Fixes which queries are drawn.
        missing: Largest share of image files that may be missing; they are skipped and counted.
        records_per_shard: See `ShardBuilder`.
    """

    def __init__(
        self,
        annotations: SceneReader | dict[str, Any],
        exclude: Path | None = None,
        measured: Sequence[Path] = (),
        single: int = 2,
        misbound: int = 1,
        half_wrong: int = 1,
        multi: int = 2,
        twins: bool = True,
        multi_misbound: int = 1,
        multi_half_wrong: int = 0,
        seed: int = 0,
        missing: float = LIMIT,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(records_per_shard)
        numbers = (single, misbound, half_wrong, multi, multi_misbound, multi_half_wrong)
        if min(numbers) < 0 or single + multi == 0:
            raise UserError(
                "expected numbers of queries >= 0 and single or multi above 0, got "
                f"{single=}, {misbound=}, {half_wrong=}, {multi=}, {multi_misbound=}, "
                f"{multi_half_wrong=}: raise them"
            )
        if isinstance(annotations, dict):
            annotations = instantiate(annotations, SceneReader)
        self.annotations = annotations
        self.exclude = None if exclude is None else Path(exclude)
        self.measured = tuple(map(Path, measured))
        self.single, self.misbound, self.half_wrong = single, misbound, half_wrong
        self.multi, self.twins = multi, twins
        self.multi_misbound, self.multi_half_wrong = multi_misbound, multi_half_wrong
        self.seed, self.missing = seed, missing

    def spec(self) -> Spec:
        """See `Configured`; what changes nothing is left out, so that the same shards are kept."""
        spec = super().spec()
        arguments = {**spec["init_args"], "annotations": self.annotations.spec()}
        idle = {"measured"} if not self.measured else set()
        idle |= {"twins"} if self.twins else set()
        return {**spec, "init_args": {k: v for k, v in arguments.items() if k not in idle}}

    def sources(self) -> Mapping[str, Path]:
        """See `Builder`."""
        excluded = {} if self.exclude is None else {self.exclude.name: self.exclude}
        measured = {path.name: path for path in self.measured}
        return {**self.annotations.sources(), **excluded, **measured}

    def records(self) -> Iterator[Record]:
        """See `ShardBuilder`.

        Raises:
            UserError: An annotation file is missing or of another layout, or too many images are.
        """
        excluded, measured = _excluded(self.exclude), measured_images(self.measured)
        every = list(self.annotations.images())
        images = [image for image in every if image.id not in measured]
        self.counts["skipped: measured"] += len(every) - len(images)
        words = Words(images)
        presence = Presence(self.counts, self.missing)
        for image in images:
            if not presence.has(image.file):
                continue
            rng = random.Random(f"{self.seed}:{image.id}")
            queries = _Queries(image.objects, excluded, words, self.annotations, rng)
            group = self._group(image, queries)
            if group is None:
                self.counts["skipped: no query"] += 1
                continue
            yield group, [image.file]
        presence.check()

    def _group(self, image: AnnotatedImage, queries: "_Queries") -> Group | None:
        found: dict[str, bool] = {}
        for query in queries.singles(self.single):
            found[query.text] = True
            wrong = [
                *queries.misbound(query, self.misbound),
                *queries.half_wrong(query, self.half_wrong),
            ]
            found |= {negative.text: False for negative in wrong}
        for pair, twin in queries.multis(self.multi):
            found[pair.text] = True
            negatives = [
                *([twin] if twin is not None and self.twins else []),
                *queries.misbound_pairs(pair, self.multi_misbound),
                *queries.half_wrong_pairs(pair, self.multi_half_wrong),
            ]
            found |= {negative.text: False for negative in negatives}
        if not any(found.values()):
            return None
        self.counts["queries: true"] += sum(found.values())
        self.counts["queries: false"] += len(found) - sum(found.values())
        texts = tuple(found)
        return Group(
            key=re.sub(r"[^A-Za-z0-9_\-]", "_", image.id),
            image_ids=(image.id,),
            text_ids=texts,
            texts=texts,
            truth=torch.tensor([list(found.values())]),
            true_ids=(queries.true_texts(),),
            exhaustive=self.annotations.exhaustive,
        )


def _excluded(path: Path | None) -> frozenset[tuple[str, str]]:
    if path is None:
        return frozenset()
    what = "a composition list"
    content = read_json(path, what)
    return parsed(path, what, lambda: frozenset((str(a), str(o)) for a, o in content["unseen"]))


class _Queries:
    """The queries of one image, true and false; whatever is drawn is drawn from `rng`."""

    def __init__(
        self,
        things: tuple[AnnotatedObject, ...],
        excluded: frozenset[tuple[str, str]],
        words: Words,
        reader: SceneReader,
        rng: random.Random,
    ) -> None:
        self.things, self.excluded, self.words = things, excluded, words
        self.reader, self.rng = reader, rng
        stated = (word for t in things for word in (t.name, *t.attributes))
        self.present = frozenset(stated)

    def _allowed(self, query: Query) -> bool:
        repeats = len(set(query.attributes)) < len(query.attributes)
        return not repeats and all((a, query.name) not in self.excluded for a in query.attributes)

    def _false(self, query: Query) -> bool:
        return self._allowed(query) and not holds(query, self.things)

    def singles(self, count: int) -> list[Query]:
        """True single-object queries."""
        every = dict.fromkeys(Query(t.single, t.name) for t in self.things)
        allowed = [query for query in every if self._allowed(query)]
        return self.rng.sample(allowed, min(count, len(allowed)))

    def _near(self, query: Query, single: bool = True) -> list[Query]:
        """Every false query that binds one object's words to another, near the given one."""
        found: dict[Query, None] = {}
        for thing in self.things:
            stated = thing.single if single else thing.multi
            near = [Query(query.attributes, thing.name), Query(stated, query.name)]
            if len(stated) == len(query.attributes):
                near += [
                    replace(query, attributes=mixed)
                    for mixed in _mixtures(query.attributes, stated)
                ]
            spelled = (replace(q, attributes=self.reader.spelled(q.attributes)) for q in near)
            found |= dict.fromkeys(q for q in spelled if self._false(q))
        return list(found)

    def misbound(self, query: Query, count: int) -> list[Query]:
        """False queries of the image's own words, near the given one."""
        near = self._near(query)
        return self.rng.sample(near, min(count, len(near)))

    def misbound_pairs(self, pair: Pair, count: int) -> list[Pair]:
        """Pairs of the image's own words of which one side is false."""
        near = [replace(pair, first=q) for q in self._near(pair.first, single=False)]
        near += [replace(pair, second=q) for q in self._near(pair.second, single=False)]
        return self.rng.sample(near, min(count, len(near)))

    def _half_wrong(self, query: Query) -> Query | None:
        for _ in range(_TRIES):
            drawn = self.words.altered(query, self.rng)
            new = {drawn.name, *drawn.attributes} - {query.name, *query.attributes}
            drawn = replace(drawn, attributes=self.reader.spelled(drawn.attributes))
            if new and new.isdisjoint(self.present) and self._false(drawn):
                return drawn
        return None

    def half_wrong(self, query: Query, count: int) -> list[Query]:
        """False queries that differ from the given one by a word that is not in the image."""
        drawn = (self._half_wrong(query) for _ in range(count))
        return [q for q in drawn if q is not None]

    def half_wrong_pairs(self, pair: Pair, count: int) -> list[Pair]:
        """Pairs that differ from the given one by a word that is not in the image."""
        found = []
        for _ in range(count):
            side = self.rng.choice(("first", "second"))
            drawn = self._half_wrong(getattr(pair, side))
            if drawn is not None:
                found.append(replace(pair, **{side: drawn}))
        return found

    def multis(self, count: int) -> list[tuple[Pair, Pair | None]]:
        """True pairs of different names and attributes, with their swapped twins where false."""
        with_twin: dict[Pair, Pair] = {}
        others: dict[Pair, None] = {}
        order = self.rng.sample(self.things, len(self.things))
        for a, b in itertools.combinations(order, 2):
            pair = Pair(Query(a.multi, a.name), Query(b.multi, b.name))
            if a.name == b.name or set(a.multi) & set(b.multi) or not self._both_allowed(pair):
                continue
            twin = Pair(Query(b.multi, a.name), Query(a.multi, b.name))
            if self._both_allowed(twin) and not holds(twin, self.things):
                with_twin[pair] = twin
            else:
                others[pair] = None
        found: list[tuple[Pair, Pair | None]] = [*with_twin.items(), *others.items()]
        return found[:count]

    def _both_allowed(self, pair: Pair) -> bool:
        return self._allowed(pair.first) and self._allowed(pair.second)

    def true_texts(self) -> frozenset[str]:
        """Every allowed query that is true of the image."""
        singles = (Query(reading, t.name) for t in self.things for reading in t.readings)
        stated = [Query(t.multi, t.name) for t in self.things]
        pairs = (Pair(a, b) for a, b in itertools.permutations(stated, 2))
        return frozenset(
            [q.text for q in singles if self._allowed(q)]
            + [p.text for p in pairs if self._both_allowed(p)]
        )


def _mixtures(own: tuple[str, ...], other: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """`same_group` with one word replaced by the word that `other` has in its place."""
    for place, word in enumerate(other):
        yield (*own[:place], word, *own[place + 1 :])
