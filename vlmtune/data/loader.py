"""Reads the batches of each epoch, in this process or in workers, and resumes in an epoch.

In: a `GroupStream` and a position. Out: batches.
Never: a count of steps; Lightning has it.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from vlmtune.data.collate import collate
from vlmtune.data.group_changes import GroupChanges
from vlmtune.data.sample_order import Consumer
from vlmtune.data.stream import GroupStream
from vlmtune.data.worker_processes import outlive_a_signal, start_method
from vlmtune.errors import UserError
from vlmtune.types import Batch

Position = tuple[int, int]
"""Number of the epoch, and how many positions of it are done, over all ranks."""

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
    changes: GroupChanges = field(default_factory=GroupChanges)
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
            multiprocessing_context=start_method(self.num_workers),
            collate_fn=_identity,  # a lambda could not go to a worker
            pin_memory=torch.cuda.is_available(),  # copies to the device beside its work
            worker_init_fn=outlive_a_signal,
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

    def check_order(self, before: dict[str, Any], within_epoch: bool = True) -> None:
        """Warns if a resumed run has another order of groups, at the end of an epoch or in it."""
        now = self.order()
        changed = sorted(name for name in now if now[name] != before.get(name))
        if not changed or self.rank != 0:
            return
        effect = "the next epochs have other records, or another order"
        if within_epoch:
            effect = "the rest of this epoch may repeat some records and leave out others"
        warnings.warn(f"resuming after a change of {', '.join(changed)}: {effect}", stacklevel=2)

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
                phrases = self.changes.phrases_of(shown, self.stream.seed, self.epoch, groups)
                yield replace(batch, phrases=phrases, token_ids=token_ids)
        except UserError as error:
            # Raised in a worker it would arrive with a traceback; as a value it stays one line.
            yield error


def _identity(item: Any) -> Any:
    return item
