"""Reads the batches of each epoch, in this process or in workers, and resumes in an epoch.

In: a `GroupStream` and a position. Out: batches.
Never: a count of steps; Lightning has it.
"""

import signal
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from vlmtune.config import Configured
from vlmtune.data.augmentation import augmented
from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.collate import collate
from vlmtune.data.hard_negatives import HardNegatives, with_hard_negatives
from vlmtune.data.sample_order import Consumer
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.errors import UserError
from vlmtune.types import Batch, Group

Position = tuple[int, int]
"""Number of the epoch, and how many positions of it are done, over all ranks."""


class BatchNeighbours(Configured, ABC):
    """Adds to the groups of a training batch other groups that are hard to tell from them."""

    @abstractmethod
    def prepare(self, sets: Sequence[ShardSet]) -> None:
        """Locates the records of the training sets."""

    @abstractmethod
    def state(self) -> dict[str, int | str]:
        """Returns what the choice depends on besides the data."""

    @abstractmethod
    def extend(
        self,
        groups: Sequence[Group],
        seed: int,
        epoch: int,
        images: bool = True,
        stored: Container[str] | None = None,
    ) -> tuple[list[Group], list[str]]:
        """Returns the groups, then their hard neighbours, and a line for each damaged record.

        `stored` holds the ids of images with stored features if images are not decoded (None: all).
        """


class CaptionPhrases(Configured, ABC):
    """Takes phrases from captions, as `NounPhrases` does; a run without them loads no tagger."""

    def prepare(self, captions: Callable[[], Iterable[str]]) -> None:
        """Learns from the training captions, if there is anything to learn."""

    @abstractmethod
    def groups(self, groups: Sequence[Group], seed: int = 0, epoch: int = 0) -> list[Group]:
        """Returns for each group the same images with phrases as texts."""


class StepChanges(Configured, ABC):
    """Makes other groups of those of a batch, in turn with the steps, as `JoinedImages` does."""

    @abstractmethod
    def changed(self, groups: Sequence[Group], seed: int, epoch: int, step: int) -> list[Group]:
        """Returns the groups of the batch with this number, of all ranks, in the epoch."""


@dataclass(frozen=True)
class GroupChanges:
    """What training does to the groups of a batch, in this order; the defaults do nothing.

    They are the arguments of `ShardDataModule` with these names.
    """

    mined: BatchNeighbours | None = None
    hard_negatives: HardNegatives = "all"
    captions: int | None = None
    negatives: CaptionNegatives | None = None
    augmentation: nn.Module | None = None
    joined: StepChanges | None = None
    phrases: CaptionPhrases | None = None

    def apply(
        self, groups: list[Group], stream: GroupStream, epoch: int, step: int
    ) -> tuple[list[Group], list[str]]:
        """Returns the changed groups, and a line for each damaged one."""
        damaged: list[str] = []
        seed = stream.seed
        if self.mined is not None:
            groups, damaged = self.mined.extend(groups, seed, epoch, stream.images, stream.stored)
        shown = with_hard_negatives(groups, self.hard_negatives, seed, epoch)
        if self.captions is not None:
            shown = draw_captions(shown, self.captions, seed, epoch)
        if self.negatives is not None:
            # Made from the captions that are shown, and of none that is true but not shown.
            shown = self.negatives.added(shown, seed, epoch, groups)
        if self.augmentation is not None:
            shown = augmented(shown, self.augmentation, seed, epoch)
        if self.joined is not None:
            shown = self.joined.changed(shown, seed, epoch, step)
        return shown, damaged

    def phrases_of(self, groups: Sequence[Group], seed: int, epoch: int) -> Batch | None:
        """Returns the phrases of the changed groups as a batch, if phrases are wanted."""
        return None if self.phrases is None else collate(self.phrases.groups(groups, seed, epoch))

    def state(self) -> dict[str, Any]:
        """Returns what the order of batches depends on."""
        return {
            "negatives": None if self.negatives is None else self.negatives.spec(),
            "mined": None if self.mined is None else self.mined.state(),
            "captions": self.captions,
            "hard_negatives": self.hard_negatives,
            "augmentation": None if self.augmentation is None else repr(self.augmentation),
            "joined": None if self.joined is None else self.joined.spec(),
            "phrases": None if self.phrases is None else self.phrases.spec(),
        }


Tokenize = Callable[[Sequence[str]], Tensor]


@dataclass(eq=False)
class EpochLoader:
    """Batches of one epoch after the other, in this process or from workers.

    `position` is called when the first batch of an epoch is fetched, not before: on resuming,
    Lightning creates the iterator before it corrects its counters. Without `preprocess` images are
    left out, without `tokenize` the tokens of the texts.
    """

    stream: GroupStream
    preprocess: Callable[[Any], Tensor] | None
    position: Callable[[], Position]
    rank: int
    world: int
    num_workers: int
    changes: GroupChanges = GroupChanges()
    tokenize: Tokenize | None = None
    seconds_fetching: float = 0.0

    def __post_init__(self) -> None:
        # Here, so that too few groups are an error before training starts.
        self.length = self.stream.length(self.rank, self.world)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = self.position()
        reader = _Reader(
            self.stream,
            self.preprocess,
            self.tokenize,
            self.changes,
            self.rank,
            self.world,
            epoch,
            start,
        )
        workers = DataLoader(
            reader,
            batch_size=None,  # the reader yields whole batches
            num_workers=self.num_workers,
            collate_fn=_identity,  # a lambda could not go to a worker
            pin_memory=torch.cuda.is_available(),  # copies to the device beside its work
            worker_init_fn=_outlive_a_signal,
        )
        # Only the waiting counts, not what the training does with a batch between two of them.
        started = time.monotonic()
        for item in workers:
            self.seconds_fetching += time.monotonic() - started
            if isinstance(item, UserError):
                raise item
            yield item
            started = time.monotonic()

    def order(self) -> dict[str, Any]:
        """Returns what the global order of groups depends on, and what is made of them."""
        return {
            "seed": self.stream.seed,
            "epoch_groups": self.stream.total,
            "shuffle_buffer": self.stream.window,
            "sets": [(data.digest(), data.weight) for data in self.stream.sets],
            **self.changes.state(),
        }

    def check_order(self, before: dict[str, Any]) -> None:
        """Warns if a run resumed in the middle of an epoch has another order of groups."""
        now = self.order()
        changed = sorted(name for name in now if now[name] != before.get(name))
        if changed and self.rank == 0:
            warnings.warn(
                f"resuming in the middle of an epoch with another {', '.join(changed)}: the rest "
                "of this epoch may repeat some records and leave out others",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the datamodule keeps the position, but Lightning asks for the method."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing, likewise."""


class NoBatches:
    """An empty loader. It has no length, because Lightning warns of a length of zero."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(())


@dataclass(eq=False)
class _Reader(IterableDataset):
    """Reads and collates the batches of one worker process, which gets a copy of it."""

    stream: GroupStream
    preprocess: Callable[[Any], Tensor] | None
    tokenize: Tokenize | None
    changes: GroupChanges
    rank: int
    world: int
    epoch: int
    start: int

    def __iter__(self) -> Iterator[Batch | UserError]:
        info = get_worker_info()
        consumer = Consumer(self.rank, self.world)
        if info is not None:
            consumer = Consumer(self.rank, self.world, info.id, info.num_workers)
        # Workers take the batches of all ranks in turn.
        step = self.start // (self.stream.batch_size * self.world) + consumer.worker
        try:
            for groups, damaged in self.stream.batches(self.epoch, consumer, self.start):
                shown, further = self.changes.apply(groups, self.stream, self.epoch, step)
                step += consumer.workers
                batch = collate(shown, self.preprocess, [*damaged, *further])
                # Tokenized here, a worker does it while the device computes the batch before.
                token_ids = None if self.tokenize is None else self.tokenize(batch.texts)
                phrases = self.changes.phrases_of(shown, self.stream.seed, self.epoch)
                yield replace(batch, phrases=phrases, token_ids=token_ids)
        except UserError as error:
            # Raised in a worker it would arrive with a traceback; as a value it stays one line.
            yield error


def _identity(item: Any) -> Any:
    return item


def _outlive_a_signal(worker: int) -> None:
    """Lets a worker ignore the first signal, which may go to all processes of a job.

    The training then ends its step, writes a checkpoint and stops the workers itself.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signal.signal(number, signal.SIG_DFL))
