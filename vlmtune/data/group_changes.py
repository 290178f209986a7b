"""What training does to the groups of a batch, in order: the arguments of `ShardDataModule`.

In: groups that `stream` reads. Out: changed groups, and phrases of their captions.
Never: a file; what adds neighbours reads it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from vlmtune.config import Configured
from vlmtune.data.augmentation import augmented
from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.collate import collate
from vlmtune.data.hard_negatives import HardNegatives, with_hard_negatives
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.types import Batch, Group


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
    def groups(
        self, groups: Sequence[Group], seed: int = 0, epoch: int = 0, whole: Sequence[Group] = ()
    ) -> list[Group]:
        """Returns for each group the same images with phrases as texts.

        `whole` are the groups with the captions that were not drawn: those are true, too.
        """


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

    def phrases_of(
        self, groups: Sequence[Group], seed: int, epoch: int, whole: Sequence[Group]
    ) -> Batch | None:
        """Returns the phrases of the changed groups as a batch, if phrases are wanted.

        `whole` are the groups as they were read.
        """
        if self.phrases is None:
            return None
        return collate(self.phrases.groups(groups, seed, epoch, whole))

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
