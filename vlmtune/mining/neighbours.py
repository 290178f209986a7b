"""Batches of images that look alike: each group brings groups of its hard neighbours.

In: the groups of a batch, and a similarity cache. Out: the batch with neighbours.
Never: a choice that depends on anything but seed, epoch and the batch.
"""

import hashlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import compress, islice, zip_longest
from pathlib import Path

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.data.group_changes import BatchNeighbours
from vlmtune.data.record_index import RecordIndex, read_group, record_index
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet
from vlmtune.data.tar_records import Damage
from vlmtune.errors import UserError
from vlmtune.language.canonical import canonical
from vlmtune.mining.cache import SimilarityCache
from vlmtune.mining.corpus import corpus_digest
from vlmtune.storage.folder import DamagedError
from vlmtune.types import Group


class MinedNeighbours(BatchNeighbours):
    """Adds to each group of a training batch groups whose images are its hard neighbours.

    Each group draws `count` of its `among` hardest other records, uniformly and without
    replacement. A record that is already in the batch is not added again: the next drawn one
    replaces it, then the next hardest. The draw is a function of seed, epoch and the batch, so a
    resumed run repeats it. A batch of b groups grows to b x (1 + count), or less if lists end, so
    lower `batch_size` accordingly. Ids of true captions tell what is true across groups, as in any
    batch.

    Each group of the batch, added ones included, gets the captions of those `among` records of the
    batch that are hardest for it (`Group.mined_negatives`), for pairs such as
    `RankingPairs(mined=8)`.

    The hardest neighbour has the caption with the highest score for the image, if the cache has
    scores of captions (EqSim: Wang et al. 2023, appendix C, which takes captions and their images),
    and else the most similar image (NegCLIP: Yuksekgonul et al. 2023, section 4, which draws one of
    the three nearest).

    Args:
        cache: Folder of the cache, as `vlmtune neighbours` prints it.
        count: Groups added for each group, at most.
        among: How many hardest records they are drawn from.
    """

    def __init__(self, cache: str, count: PositiveInt = 1, among: PositiveInt = 3) -> None:
        self.cache = cache
        self.count = count
        self.among = among
        self._opened: SimilarityCache | None = None
        self._index: RecordIndex | None = None
        self._record_of = np.empty(0, np.int32)  # of each image of the cache; -1 for none

    @override
    def prepare(self, sets: Sequence[ShardSet]) -> None:
        """Opens the cache and finds the records of the training sets."""
        try:
            self._opened = SimilarityCache(Path(self.cache))
        except DamagedError as error:
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
        images = self._opened.image_ids
        self._record_of = np.full(len(images), -1, np.int32)

        def note(number: int, image: str) -> None:
            row = images.find(image)
            if row is not None and self._record_of[row] < 0:  # the first record with the image
                self._record_of[row] = number

        self._index = record_index(sets, note)

    @override
    def state(self) -> dict[str, int | str]:
        assert self._opened is not None
        digest = str(self._opened.meta["digest"])
        return {"cache": digest, "count": self.count, "among": self.among}

    @override
    def extend(
        self,
        groups: Sequence[Group],
        seed: int,
        epoch: int,
        images: bool = True,
        stored: Container[str] | None = None,
    ) -> tuple[list[Group], list[str]]:
        assert self._index is not None
        # A record is added once, for the first group that draws it.
        present: set[int] = set()
        for group in groups:
            present.update(self._records(group))
        extended = list(groups)
        damaged = []
        for group in groups:
            missing = self.count
            for number in self._draw(group, f"{seed}/{epoch}/{group.key}/{group.image_ids}"):
                if missing == 0:
                    break
                if number in present:
                    continue
                present.add(number)
                record = self._index[number]
                try:
                    neighbour = read_group(record, images)
                except RecordError as error:
                    damage = Damage(record.shard, record.key, str(error))
                    damaged.append(str(damage))
                    continue
                # Without its images a record is of use only if their features are stored.
                if images or stored is None or _all_stored(neighbour, stored):
                    extended.append(neighbour)
                    missing -= 1
        return self._mark(extended), damaged

    def _mark(self, groups: Sequence[Group]) -> list[Group]:
        """Gives each group the captions of the other groups that are hardest for it."""
        # Captions of the records that are in the batch, added ones included.
        captions: dict[int, dict[str, str]] = {}
        for group in groups:
            # Another record of the image has the number of the first, and captions of its own.
            for number in self._records(group):
                captions.setdefault(number, {}).update(_captions(group))
        marked = []
        for group in groups:
            in_batch = (number for number in self._rank(group) if number in captions)
            true = set(_captions(group).values())
            hardest: set[str] = set()
            for number in islice(in_batch, self.among):
                texts = captions[number].items()
                hardest.update(name for name, caption in texts if caption not in true)
            marked.append(replace(group, mined_negatives=frozenset(hardest)))
        return marked

    def _draw(self, group: Group, key: str) -> Iterator[int]:
        """Yields other records: the hardest in an order drawn by `key`, then the rest."""
        ranked = self._rank(group)
        # By sha256, as `hash` of a string differs from process to process.
        content = key.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(content).digest()
        seed = int.from_bytes(digest[:16])
        # A generator of its own for each group: the draw does not depend on the batch's order.
        generator = np.random.default_rng(seed)
        hardest = min(self.among, len(ranked))
        for position in generator.permutation(hardest).tolist():
            yield ranked[position]
        yield from ranked[hardest:]

    def _rank(self, group: Group) -> list[int]:
        """Returns other records by hardness, from the lists of the group's images in turns."""
        assert self._opened is not None
        group_records = set(self._records(group))
        lists = [self._opened.counterpart_rows(row) for row in self._rows(group)]
        ranked: dict[
            int, None
        ] = {}  # a dictionary for its order: a record counts where it comes first
        for rows in zip_longest(*lists):
            known = [row for row in rows if row is not None]  # shorter lists have ended
            for number in self._record_of[known].tolist():
                if number >= 0 and number not in group_records:
                    ranked[number] = None
        return list(ranked)

    def _records(self, group: Group) -> list[int]:
        """Returns the records of the group's images that the cache knows."""
        numbers = self._record_of[self._rows(group)]
        return numbers[numbers >= 0].tolist()

    def _rows(self, group: Group) -> list[int]:
        assert self._opened is not None
        rows = []
        for image in group.image_ids:
            row = self._opened.image_ids.find(image)
            if row is not None:
                rows.append(row)
        return rows


def _captions(group: Group) -> dict[str, str]:
    """Returns the texts that are true of an image of the group: their words by id."""
    true = group.truth.any(dim=0).tolist()
    names = compress(group.text_ids, true)
    texts = compress(group.texts, true)
    return dict(zip(names, map(canonical, texts), strict=True))


def _all_stored(group: Group, stored: Container[str]) -> bool:
    return all(image in stored for image in group.image_ids)
