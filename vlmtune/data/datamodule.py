"""Shard sets as the loaders that Lightning asks for.

In: shard sets. Out: batches, and the distinct images and captions for the feature store.
Never: features; the module of the trainer preprocesses images.
"""

import hashlib
from collections.abc import Callable, Collection, Container, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveInt
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.catalogue import Catalogue, catalogue, decoded_images, image_digests
from vlmtune.data.group_changes import BatchNeighbours, CaptionPhrases, GroupChanges, StepChanges
from vlmtune.data.hard_negatives import HardNegatives
from vlmtune.data.loader import EpochLoader, NoBatches, Position
from vlmtune.data.position import TrainingPosition, align
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream, check_sets
from vlmtune.errors import UserError


class ShardDataModule(LightningDataModule):
    """Feeds shard sets to training and validation; `captions: 1` draws one an image and epoch.

    The order of the groups is a pure function of seed, epoch and position in the epoch. A global
    batch takes the next positions of it, and each rank its part of them. So a run that resumes in
    the middle of an epoch reads exactly the rest, with any number of ranks and workers.

    An id names the same image or text in every set.

    Args:
        train: Shard sets to train on.
        val: Shard sets to validate on.
        batch_size: Groups in a batch on each rank.
        num_workers: Processes that read and decode, on each rank; 0 for the training process.
        seed: Seed of the order of training; None for 0 or, in `fit`, seed_everything.
        epoch_groups: Groups in an epoch over all ranks; None for the sum of the training sets.
        shuffle_buffer: Consecutive records of an epoch that are shuffled among themselves, beside
            the shards; 0 keeps the order within shards. It takes no memory for records.
        max_damaged: Fraction of the records that may be unusable before training fails.
        negatives: Makes false captions for training, beside those of the records; None for none.
        mined: Adds hard neighbours to training batches, such as `MinedNeighbours`; None for none.
        captions: True captions of each training image in an epoch, drawn anew in each; None for
            all. See `draw_captions`.
        hard_negatives: Which hard negatives of the training records are used: "all", "captions",
            "images" or "none". See `with_hard_negatives`.
        augmentation: Changes training images at random, such as a transform of
            `torchvision.transforms.v2`; None for none. It needs images whose features are
            not stored. See `augmented`.
        joined: Joins training images in pairs, such as `JoinedImages`; None for none. It needs
            images whose features are not stored.
        phrases: Takes phrases from the captions of training and validation, for objectives that
            read them, such as `C2LIP`; None for none. See `NounPhrases` and `CaptionUnits`.
    """

    def __init__(
        self,
        train: list[ShardSet],
        batch_size: PositiveInt,
        val: list[ShardSet] | None = None,
        num_workers: NonNegativeInt = 0,
        seed: NonNegativeInt | None = None,
        epoch_groups: PositiveInt | None = None,
        shuffle_buffer: NonNegativeInt = 10_000,
        max_damaged: Annotated[float, Ge(0), Lt(1)] = 0.01,
        negatives: CaptionNegatives | None = None,
        mined: BatchNeighbours | None = None,
        captions: PositiveInt | None = None,
        hard_negatives: HardNegatives = "all",
        augmentation: nn.Module | None = None,
        joined: StepChanges | None = None,
        phrases: CaptionPhrases | None = None,
    ) -> None:
        super().__init__()
        self.sets = {"train": list(train), "val": list(val or [])}
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed or 0  # `fit` passes seed_everything
        self.epoch_groups = epoch_groups
        self.shuffle_buffer = shuffle_buffer
        self.max_damaged = max_damaged
        self.changes = GroupChanges(
            mined, hard_negatives, captions, negatives, augmentation, joined, phrases
        )
        self._decodes = True
        self._stored: Container[str] | None = None
        self._training = TrainingPosition()
        self._fit_loader: EpochLoader | None = None

    def use_stored_images(self, stored: Container[str] | None = None) -> None:
        """Leaves images undecoded from now on, as their features are stored.

        Records with images other than `stored` (None: all) count as damaged.

        Raises:
            UserError: The images were to be augmented or joined.
        """
        for name in ("augmentation", "joined"):
            if getattr(self.changes, name) is not None:
                raise UserError(
                    f"expected no data.{name}, as the features of these images are stored: leave "
                    "it or model.store out, or choose an adapter that trains the image tower"
                )
        self._decodes = False
        self._stored = stored

    @override
    def setup(self, stage: str) -> None:
        # Reading the manifests reports a missing set before the first step.
        if stage == "fit":
            check_sets(self.sets["train"], "train")
            self._training = TrainingPosition()
            self._fit_loader = None
        if self.sets["val"]:
            check_sets(self.sets["val"], "val")

    @override
    def teardown(self, stage: str) -> None:
        self._decodes = True  # the next module may have no store
        self._stored = None

    @override
    def train_dataloader(self) -> EpochLoader:
        """Returns the loader of training batches."""
        stream = self._training_stream()
        if self.changes.negatives is not None:
            self.changes.negatives.prepare(lambda: catalogue(stream.sets).texts)
        if self.changes.mined is not None:
            self.changes.mined.prepare(stream.sets)
        self._fit_loader = self._loader(stream, self._position, self.changes)
        return self._fit_loader

    @override
    def val_dataloader(self) -> EpochLoader | NoBatches:
        """Returns the loader that reads each validation record once."""
        # Without sets Lightning still calls the callbacks that evaluate benchmarks.
        if not self.sets["val"]:
            return NoBatches()
        stream = self._stream("val", train=False)
        # Records as they are; phrases belong to the loss, so validation has them too.
        changes = GroupChanges(phrases=self.changes.phrases)
        return self._loader(stream, lambda: (0, 0), changes)

    @override
    def test_dataloader(self) -> NoBatches:
        """Returns no batches: callbacks run the benchmarks of a test."""
        return NoBatches()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Returns the position of training in the data, for a checkpoint."""
        if self.trainer is None or self._fit_loader is None:
            return {}
        return self._training.state(self.trainer, self._fit_loader)

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the position of a checkpoint."""
        self._training.load(state_dict)

    def align(self, checkpoint: dict[str, Any]) -> None:
        """Changes Lightning's counts of batches in a checkpoint to those of this run.

        A module calls it in `on_load_checkpoint`, so that a fit may resume with other numbers of
        ranks or groups in a batch.
        """
        # Lightning keeps the state of a datamodule under the name of its class.
        state = checkpoint.get(type(self).__qualname__)
        is_fit = self.trainer is not None and self.trainer.state.fn == "fit"
        if state is None or not is_fit:
            return
        loops = checkpoint["loops"]["fit_loop"]
        loader = self._loader(self._training_stream(), self._position, preprocessed=False)
        align(state, loops, self.trainer, loader)

    def digest(self, split: Literal["train", "val"] = "train") -> str:
        """Returns a hex digest of the records of a split."""
        sums = "\n".join(data.digest() for data in self.sets[split])
        return hashlib.sha256(sums.encode()).hexdigest()

    def distinct_images(
        self, preprocess: Callable[[Any], Tensor], ids: Collection[str]
    ) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "n 3 height width"]]]:
        """Yields ids and pixels of some images of both splits, in the order of `ids`.

        Damaged images are left out; more than `max_damaged` of them are an error.
        """
        known = self._catalogue.images
        return decoded_images(
            {image: known[image] for image in ids},
            preprocess,
            batch_size=64,
            num_workers=self.num_workers,
            max_damaged=self.max_damaged,
            total=len(known),
        )

    def image_ids(self) -> Collection[str]:
        """Returns the ids of all images of both splits."""
        return self._catalogue.images.keys()

    def image_digests(self) -> dict[str, str]:
        """Returns by id the digest of each image's content; unreadable images are left out."""
        return image_digests(self._catalogue.images)

    def distinct_texts(self) -> list[str]:
        """Returns all captions of both splits, each once, sorted."""
        return self._catalogue.texts

    @cached_property
    def _catalogue(self) -> Catalogue:
        sets = check_sets(self.sets["train"] + self.sets["val"], "train and val")
        return catalogue(sets)

    def _training_stream(self) -> GroupStream:
        return self._stream(
            "train", total=self.epoch_groups, seed=self.seed, window=self.shuffle_buffer
        )

    def _stream(self, split: str, **options: Any) -> GroupStream:
        return GroupStream(
            check_sets(self.sets[split], split),
            self.batch_size,
            max_damaged=self.max_damaged,
            images=self._decodes,
            stored=self._stored,
            **options,
        )

    def _loader(
        self,
        stream: GroupStream,
        position: Callable[[], Position],
        changes: GroupChanges = GroupChanges(),  # noqa: B008 - it is frozen
        preprocessed: bool = True,
    ) -> EpochLoader:
        rank = self.trainer.global_rank if self.trainer else 0
        world = self.trainer.world_size if self.trainer else 1
        preprocess = None
        # A module has `preprocess` and `tokenize` of its backbone; stored images need neither.
        module: Any = self.trainer.lightning_module if self.trainer else None
        if self._decodes and preprocessed:
            if self.trainer is None:
                raise UserError(
                    "expected a trainer whose module preprocesses images, got none: "
                    "pass the datamodule to a trainer, or call use_stored_images()"
                )
            preprocess = module.preprocess
        tokenize = getattr(module, "tokenize", None)
        if changes.phrases is not None:
            sets = check_sets(self.sets["train"], "train")
            changes.phrases.prepare(lambda: catalogue(sets).texts)
        return EpochLoader(
            stream, preprocess, position, rank, world, self.num_workers, changes, tokenize
        )

    def _position(self) -> Position:
        if self.trainer is None or not self.trainer.training or self._fit_loader is None:
            return 0, 0
        return self._training.begin(self.trainer, self._fit_loader)
