"""Batches of images that look alike: each group brings groups of its mined neighbours."""

import hashlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from vlmtune.config import Configured
from vlmtune.data.neighbours import DamagedCacheError, SimilarityCache
from vlmtune.data.records import RecordIndex, corpus_digest, record_index
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import Damage, ShardSet
from vlmtune.errors import UserError
from vlmtune.types import Group


class MinedNeighbours(Configured):
    """Adds to each group of a training batch groups whose images are its hard neighbours.

    Of a group's `among` hardest other records `count` are drawn, uniformly and without
    replacement. A record that is in the batch already is not added again; the next one drawn takes
    its place, and where there is none, the next hardest. They are a function of seed, epoch and the
    batch, so that a resumed run sees them again. A batch of b groups grows to b x (1 + count), less
    where lists end, so lower `batch_size` accordingly. What is true across groups is known from the
    ids of their true captions, as in any batch.

    Each group of the batch, added ones included, is told the captions of those `among` records of
    the batch that are hardest for it (`Group.mined_negatives`), for pairs such as
    `RankingPairs(mined=8)`.

    Hardest is the neighbour with the caption that scores highest for the image, where the cache has
    scores of captions (EqSim: Wang et al. 2023, appendix C, which takes captions and their images),
    and else the most similar image (NegCLIP: Yuksekgonul et al. 2023, section 4, which draws one of
    the three nearest).

    Args:
        cache: Folder of the cache, as `vlmtune neighbours` names it.
        count: Groups added for each group, at most.
        among: Of how many hardest ones they are drawn.

    Raises:
        UserError: A number is out of range.
    """

    def __init__(self, cache: str, count: int = 1, among: int = 3) -> None:
        if not 1 <= count <= among:
            raise UserError(
                f"expected a count of at least 1 and at most among, got {count=}, {among=}: "
                "correct them"
            )
        self.cache, self.count, self.among = cache, count, among
        self._opened: SimilarityCache | None = None
        self._index = RecordIndex([], {})

    def prepare(self, sets: Sequence[ShardSet]) -> None:
        """Opens the cache and finds the records of the training sets.

        Raises:
            UserError: There is no such cache, it is damaged, or it is of other sets.
        """
        try:
            self._opened = SimilarityCache(Path(self.cache))
        except DamagedCacheError as error:
            raise UserError(
                f"expected a similarity cache in {self.cache}, got none ({error}): "
                "build it with `vlmtune neighbours`"
            ) from error
        source = self._opened.meta["key"].get("source")
        if source != corpus_digest(sets):
            raise UserError(
                f"expected a similarity cache of the training sets in {self.cache}, got one of "
                "other shards: build it again with `vlmtune neighbours`"
            )
        self._index = record_index(sets)

    def state(self) -> dict[str, int | str]:
        """What the choice depends on besides the data; caches with one digest are the same."""
        assert self._opened is not None
        digest = str(self._opened.meta["digest"])
        return {"cache": digest, "count": self.count, "among": self.among}

    def added(
        self,
        groups: Sequence[Group],
        seed: int,
        epoch: int,
        images: bool = True,
        stored: Container[str] | None = None,
    ) -> tuple[list[Group], list[str]]:
        """Returns a batch with neighbours, and a line for each neighbour that cannot be decoded.

        Args:
            groups: The groups of the batch, which come first in the result.
            seed: Seed of the training data.
            epoch: Number of the epoch; each draws anew.
            images: Whether images are decoded.
            stored: Where they are not: ids of images whose features are at hand; None for all.
        """
        present = {number for group in groups for number in self._records(group)}
        extended, damaged = list(groups), []
        for group in groups:
            left = self.count
            for number in self._drawn(group, f"{seed}/{epoch}/{group.key}/{group.image_ids}"):
                if left == 0:
                    break
                if number in present:
                    continue
                present.add(number)
                place = self._index.records[number]
                try:
                    found = place.read(images)
                except RecordError as error:
                    damaged.append(str(Damage(place.shard, place.key, str(error))))
                    continue
                if images or stored is None or all(name in stored for name in found.image_ids):
                    extended.append(found)
                    left -= 1
        return self._marked(extended), damaged

    def _marked(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the captions of the others that are hardest for them."""
        captions = {number: _captions(group) for group in groups for number in self._records(group)}
        marked = []
        for group in groups:
            here = (captions[number] for number in self._ranked(group) if number in captions)
            hardest = frozenset[str]().union(*islice(here, self.among))
            marked.append(replace(group, mined_negatives=hardest))
        return marked

    def _drawn(self, group: Group, key: str) -> Iterator[int]:
        """Other records: the hardest in an order drawn by `key`, then the rest by hardness."""
        ranked = self._ranked(group)
        number = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:16])
        hardest = min(self.among, len(ranked))
        for at in np.random.default_rng(number).permutation(hardest).tolist():
            yield ranked[at]
        yield from ranked[hardest:]

    def _ranked(self, group: Group) -> list[int]:
        """Other records by hardness, taken from the lists of the group's images in turns."""
        assert self._opened is not None
        own, found = set(self._records(group)), dict[int, None]()
        lists = [self._opened.counterparts(i) for i in group.image_ids if i in self._opened]
        for names in zip_longest(*lists):
            for name in names:
                number = None if name is None else self._index.of_image.get(name)
                if number is not None and number not in own:
                    found.setdefault(number)
        return list(found)

    def _records(self, group: Group) -> list[int]:
        numbers = (self._index.of_image.get(image) for image in group.image_ids)
        return [number for number in numbers if number is not None]


def _captions(group: Group) -> frozenset[str]:
    """Ids of the texts that are true of an image of the group."""
    true = group.truth.any(dim=0).tolist()
    return frozenset(name for name, yes in zip(group.text_ids, true, strict=True) if yes)
