"""Shard sets as the loaders Lightning asks for."""

import hashlib
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Literal

from jaxtyping import Float
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from vlmtune.data.catalogue import Catalogue, catalogue, decoded_images, image_digests
from vlmtune.data.collate import collate
from vlmtune.data.mined import MinedNeighbours
from vlmtune.data.negatives import CaptionNegatives
from vlmtune.data.plan import Consumer
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream, check_sets
from vlmtune.errors import UserError
from vlmtune.types import Batch, Group

Position = tuple[int, int]
"""Number of the epoch, and batches of it that are done."""


class ShardDataModule(LightningDataModule):
    """Feeds shard sets to training and validation.

    Batches are a pure function of seed, epoch, rank and worker, and a run resumed in the middle of
    an epoch goes on with exactly the batches an uninterrupted run would have seen.

    Ids of images and texts mean the same in every set, so sets that differ need different ids.

    Args:
        train: Shard sets to train on.
        val: Shard sets to validate on.
        batch_size: Groups in a batch on each rank.
        num_workers: Processes that read and decode, on each rank; 0 for the training process.
        seed: Seed of the order of training.
        epoch_groups: Groups in an epoch over all ranks; None for the sum of the training sets.
        shuffle_buffer: Undecoded records a reader shuffles among; 0 keeps the order of the shards.
        max_damaged: Fraction of the records that may be unusable before training fails.
        negatives: Makes false captions for training; None for those of the records alone.
        mined: Adds to the groups of a training batch others whose images are hard to tell from
            theirs; None for none.

    Attributes:
        decode_images: Set it to False where features are read from a store: images are then not
            decoded and `Batch.pixels` is None.
        stored_images: Where images are not decoded: ids of the images whose features are stored,
            or None for all. Records with other images count as damaged.

    Raises:
        UserError: A number is out of range.
    """

    def __init__(
        self,
        train: list[ShardSet],
        batch_size: int,
        val: list[ShardSet] | None = None,
        num_workers: int = 0,
        seed: int = 0,
        epoch_groups: int | None = None,
        shuffle_buffer: int = 1000,
        max_damaged: float = 0.01,
        negatives: CaptionNegatives | None = None,
        mined: MinedNeighbours | None = None,
    ) -> None:
        super().__init__()
        _at_least("batch_size", batch_size, 1)
        _at_least("num_workers", num_workers, 0)
        _at_least("seed", seed, 0)
        _at_least("epoch_groups", 1 if epoch_groups is None else epoch_groups, 1)
        _at_least("shuffle_buffer", shuffle_buffer, 0)
        if not 0 <= max_damaged < 1:
            raise UserError(
                f"expected max_damaged from 0 to below 1, got {max_damaged}: correct it"
            )
        self.sets = {"train": list(train), "val": list(val or [])}
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self.epoch_groups, self.shuffle_buffer = epoch_groups, shuffle_buffer
        self.max_damaged, self.negatives, self.mined = max_damaged, negatives, mined
        self.decode_images = True
        self.stored_images: Container[str] | None = None

    def setup(self, stage: str) -> None:
        """Reads the manifests, so that what is missing is said before the first step.

        Raises:
            UserError: There is no shard set, or one cannot be read.
        """
        if stage == "fit":
            check_sets(self.sets["train"], "train")
        if self.sets["val"]:
            check_sets(self.sets["val"], "val")

    def train_dataloader(self) -> "EpochLoader":
        """Returns the loader of training batches; it asks the trainer for the epoch each time.

        Raises:
            UserError: There is no training set, one cannot be read, or an epoch has no batch.
        """
        stream = GroupStream(
            check_sets(self.sets["train"], "train"),
            self.batch_size,
            total=self.epoch_groups,
            seed=self.seed,
            buffer=self.shuffle_buffer,
            max_damaged=self.max_damaged,
            images=self.decode_images,
            stored=self._stored(),
        )
        if self.negatives is not None:
            self.negatives.prepare(lambda: catalogue(stream.sets).texts)
        if self.mined is not None:
            self.mined.prepare(stream.sets)
        return self._loader(stream, self._position, self.negatives, self.mined)

    def val_dataloader(self) -> "EpochLoader | NoBatches":
        """Returns the loader that sees each validation record once.

        Without validation sets it has no batches, but callbacks that evaluate benchmarks on
        Lightning's validation hooks are still called.

        Raises:
            UserError: A set cannot be read, or has fewer groups than there are ranks.
        """
        if not self.sets["val"]:
            return NoBatches()
        stream = GroupStream(
            check_sets(self.sets["val"], "val"),
            self.batch_size,
            train=False,
            max_damaged=self.max_damaged,
            images=self.decode_images,
            stored=self._stored(),
        )
        return self._loader(stream, _beginning)

    def test_dataloader(self) -> "NoBatches":
        """Returns no batches: tests are benchmarks, which callbacks run."""
        return NoBatches()

    def digest(self, split: Literal["train", "val"] = "train") -> str:
        """Returns a hex digest of a split's records: another digest means other data."""
        sums = "\n".join(data.digest() for data in self.sets[split])
        return hashlib.sha256(sums.encode()).hexdigest()

    def distinct_images(
        self, preprocess: Callable[[Any], Tensor], ids: Collection[str] | None = None
    ) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "n 3 height width"]]]:
        """Yields ids and pixels of images of both splits, each id once, always in one order.

        Images that cannot be decoded are left out.

        Args:
            preprocess: Turns an image into pixels.
            ids: Which images; None for all.

        Raises:
            UserError: More than `max_damaged` of them cannot be decoded.
        """
        known = self._catalogue.images
        images = known if ids is None else {image: known[image] for image in ids}
        workers, damaged = self.num_workers, self.max_damaged
        return decoded_images(images, preprocess, 64, workers, damaged, len(known))

    def image_ids(self) -> Collection[str]:
        """Returns the ids of all images of both splits."""
        return self._catalogue.images.keys()

    def image_digests(self) -> dict[str, str]:
        """Returns by id a digest of the content of each image; reads all of them.

        Those that cannot be read are left out.
        """
        return image_digests(self._catalogue.images)

    def distinct_texts(self) -> list[str]:
        """Returns all captions of both splits, each once, sorted."""
        return self._catalogue.texts

    @cached_property
    def _catalogue(self) -> Catalogue:
        return catalogue(check_sets(self.sets["train"] + self.sets["val"], "train and val"))

    def _stored(self) -> Container[str] | None:
        return None if self.decode_images else self.stored_images

    def _loader(
        self,
        stream: GroupStream,
        position: Callable[[], Position],
        negatives: CaptionNegatives | None = None,
        mined: MinedNeighbours | None = None,
    ) -> "EpochLoader":
        rank = self.trainer.global_rank if self.trainer else 0
        world = self.trainer.world_size if self.trainer else 1
        preprocess = self._preprocess() if self.decode_images else None
        return EpochLoader(
            stream, preprocess, position, rank, world, self.num_workers, negatives, mined
        )

    def _preprocess(self) -> Callable[[Any], Tensor]:
        if self.trainer is None:
            raise UserError(
                "expected a trainer whose module has a backbone to preprocess images, got none: "
                "set decode_images to False or pass the datamodule to a trainer"
            )
        module: Any = self.trainer.lightning_module
        return module.backbone.preprocess

    def _position(self) -> Position:
        """Where Lightning's own counters stand, which it restores from a checkpoint."""
        if self.trainer is None or not self.trainer.training:
            return 0, 0
        batches = self.trainer.fit_loop.epoch_loop.batch_progress
        done = batches.current.completed
        # Lightning's own number of the epoch is one too high after resuming a run limited by steps
        # from the end of an epoch; its count of batches is right.
        length = max(1, int(self.trainer.num_training_batches))
        return (batches.total.completed - done) // length, done


class EpochLoader:
    """Batches of one epoch after the other, in this process or from workers.

    `position` is asked when the first batch of an epoch is fetched, not before: on resuming,
    Lightning makes the iterator before it has corrected its counters.

    Args:
        stream: What to read.
        preprocess: Turns an image into pixels; None where features are read instead.
        position: Says the epoch and how many of its batches are done.
        rank: Which of the ranks this is.
        world: Number of ranks.
        num_workers: Worker processes, or 0.
        negatives: Makes false captions, or None.
        mined: Adds hard neighbours, or None.
    """

    def __init__(
        self,
        stream: GroupStream,
        preprocess: Callable[[Any], Tensor] | None,
        position: Callable[[], Position],
        rank: int,
        world: int,
        num_workers: int,
        negatives: CaptionNegatives | None = None,
        mined: MinedNeighbours | None = None,
    ) -> None:
        self.stream, self.preprocess, self.position = stream, preprocess, position
        self.rank, self.world, self.num_workers = rank, world, num_workers
        self.negatives, self.mined = negatives, mined
        self.length = stream.length(rank, world)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = self.position()
        prepare = partial(
            _prepared, self.preprocess, self.negatives, self.mined, self.stream, epoch
        )
        reader = _Reader(self.stream, prepare, self.rank, self.world, epoch, done)
        for item in DataLoader(reader, None, num_workers=self.num_workers, collate_fn=_identity):
            if isinstance(item, UserError):
                raise item
            yield item

    def state_dict(self) -> dict[str, Any]:
        """What the order of batches depends on; the position in it is in Lightning's counters."""
        return {
            "seed": self.stream.seed,
            "batch_size": self.stream.batch_size,
            "world": self.world,
            "num_workers": self.num_workers,
            "epoch_groups": self.stream.total,
            "shuffle_buffer": self.stream.buffer,
            "sets": [(data.digest(), data.weight) for data in self.stream.sets],
            "negatives": None if self.negatives is None else self.negatives.spec(),
            "mined": None if self.mined is None else self.mined.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Warns where a run resumed in the middle of an epoch has another order of batches."""
        now = self.state_dict()
        changed = sorted(name for name in now if now[name] != state.get(name))
        if changed:
            rank_zero_warn(
                f"resuming in the middle of an epoch with another {', '.join(changed)}: the rest "
                "of this epoch may repeat some records and leave out others"
            )


class NoBatches:
    """A loader of nothing. It states no length, as Lightning warns of a length of zero."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(())


class _Reader(IterableDataset):
    """What one worker process does: reads its batches and collates them."""

    def __init__(
        self,
        stream: GroupStream,
        prepare: Callable[[list[Group], Sequence[str]], Batch],
        rank: int,
        world: int,
        epoch: int,
        done: int,
    ) -> None:
        self.read = partial(stream.batches, epoch)
        self.prepare, self.rank, self.world, self.done = prepare, rank, world, done

    def __iter__(self) -> Iterator[Batch | UserError]:
        info = get_worker_info()
        process, workers = (info.id, info.num_workers) if info else (0, 1)
        # DataLoader takes the first batch from process 0, so on resuming after `done` batches
        # process 0 does what worker `done % workers` would have gone on with.
        worker = (process + self.done) % workers
        skip = len(range(worker, self.done, workers))
        consumer = Consumer(self.rank, self.world, worker, workers)
        try:
            for groups, damaged in self.read(consumer, skip):
                yield self.prepare(groups, damaged)
        except UserError as error:
            # Raised in a worker it would arrive wrapped in a traceback; as a value it stays one
            # line.
            yield error


def _prepared(
    preprocess: Callable[[Any], Tensor] | None,
    negatives: CaptionNegatives | None,
    mined: MinedNeighbours | None,
    stream: GroupStream,
    epoch: int,
    groups: list[Group],
    damaged: Sequence[str],
) -> Batch:
    if mined is not None:
        groups, lines = mined.added(groups, stream.seed, epoch, stream.images, stream.stored)
        damaged = [*damaged, *lines]
    if negatives is not None:
        groups = negatives.added(groups, stream.seed, epoch)
    return collate(groups, preprocess, damaged)


def _identity(item: Any) -> Any:
    return item


def _beginning() -> Position:
    return 0, 0


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"expected {name} of at least {least}, got {value}: raise it")
