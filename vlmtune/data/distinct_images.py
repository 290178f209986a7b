"""The distinct images of a table by their content, what is true of each, and its split.

In: rows of a table with the digests of their images. Out: which rows a build writes, with the
captions of an image gathered from all of its rows. Never: an image in two splits.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from vlmtune.data.table_rows import TableRow
from vlmtune.errors import UserError

TRAIN, HELD_OUT = "train", "val"
TRAINING = (TRAIN, "training")
_VALIDATION = (HELD_OUT, "valid", "validation", "dev")


@dataclass
class DistinctImage:
    """An image: its id, all captions true of it, and those that the written rows show."""

    id: str
    true: dict[str, None] = field(default_factory=dict)
    captions: dict[str, None] = field(default_factory=dict)
    negatives: dict[str, None] = field(default_factory=dict)
    splits: set[str] = field(default_factory=set)


class DistinctImages:
    """Gathers the rows of each image, and the split that it belongs to.

    An image whose rows are of several splits belongs to the last of training, validation and test,
    and so do the images that share a row with it.

    Args:
        splits: The splits to write; None for all rows.
        held_out: Fraction of the images, by a hash of their content, whose split is "val" instead
            of "train", in a table without splits.
    """

    def __init__(self, splits: Collection[str] | None, held_out: float) -> None:
        self.splits = splits
        self.held_out = held_out
        self.images: dict[bytes, DistinctImage] = {}
        self._parents: dict[bytes, bytes] = {}  # of the images that share rows
        self._rows: dict[str, tuple[bytes, str]] = {}  # image and row of each id

    def add(self, row: TableRow, digests: Sequence[bytes]) -> None:
        """Adds a row, with the sha256 of its image and of its hard-negative image if it has one."""
        first = digests[0]
        # An id is what truth is known by: of two images, each would get the captions of both.
        if row.id:
            known, where = self._rows.setdefault(row.id, (first, row.where))
            if known != first:
                raise UserError(
                    f"expected one image for the id {row.id!r}, got two, in {where} and "
                    f"{row.where}: make the ids unique, or set `columns.id` to null"
                )
        # With a hard-negative image the negatives are its captions: they are true of it.
        texts = (row.captions, row.negatives)
        names = (row.id or row.name, row.negative_name)
        for digest, true, name in zip(digests, texts, names, strict=False):
            new = DistinctImage(f"{name} {digest.hex()[:12]}")
            image = self.images.setdefault(digest, new)
            image.true |= dict.fromkeys(true)
            image.splits.add(row.split)  # `finish` chooses one of them
        if len(digests) == 1 and self._named(row):
            image = self.images[first]
            image.captions |= dict.fromkeys(row.captions)
            image.negatives |= dict.fromkeys(row.negatives)
        # Images of one row belong to one split, and so do the images of rows that share one.
        for digest in digests[1:]:
            root = self._root(digest)
            self._parents[root] = self._root(first)

    def finish(self) -> None:
        """Gives images that share rows one split; call it after the last row."""
        # The least digest names a set of images, as the order of the rows must not change a split.
        splits: dict[bytes, set[str]] = {}
        least: dict[bytes, bytes] = {}
        for digest, image in self.images.items():
            root = self._root(digest)
            splits.setdefault(root, set()).update(image.splits)
            least[root] = min(least.get(root, digest), digest)
        for digest, image in self.images.items():
            root = self._root(digest)
            owner = self._owner(splits[root], least[root])
            image.splits = {owner}

    def writes(self, row: TableRow, digests: Sequence[bytes]) -> bool:
        """Tells whether a row is written: it and its images belong to the splits to write."""
        if self.splits is None:
            return True
        image = self.images[digests[0]]
        return self._named(row) and image.splits <= set(self.splits)

    def in_another_split(self, row: TableRow, digests: Sequence[bytes]) -> bool:
        """Tells whether a row names a split to write, but its images belong to another."""
        return not self.held_out and self._named(row) and not self.writes(row, digests)

    def _named(self, row: TableRow) -> bool:
        return self.splits is None or self.held_out > 0 or row.split in self.splits

    def _owner(self, splits: set[str], least: bytes) -> str:
        if self.held_out > 0:
            # A digest is as good as a random number, and the same in every run and table.
            number = int.from_bytes(least[:8], "big")
            fraction = number / 2**64
            return HELD_OUT if fraction < self.held_out else TRAIN
        return max(splits, key=lambda split: (_order(split), split))

    def _root(self, digest: bytes) -> bytes:
        while True:
            parent = self._parents.get(digest, digest)
            if parent == digest:
                return digest
            # Each image on the way gets its grandparent, so that later ways are short.
            self._parents[digest] = self._parents.get(parent, parent)
            digest = parent


def training_splits(known: Collection[str]) -> tuple[str, ...]:
    """The splits that are for training, out of those of a table."""
    return tuple(split for split in sorted(known) if _order(split) == 0)


def _order(split: str) -> int:
    name = split.lower()
    if name in TRAINING:
        return 0
    return 1 if name in _VALIDATION else 2
