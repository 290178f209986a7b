"""Training sets whose groups are made while training, in place of a folder of shards.

In: the epoch and the number of a group. Out: the group, with its images. Never: a file.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property

from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.data.schema import Manifest, ShardInfo
from vlmtune.data.shards import ShardSet, Weight
from vlmtune.data.tar_records import Shard
from vlmtune.errors import UserError
from vlmtune.storage.folder import digest
from vlmtune.types import Group


class RenderedSet(ShardSet):
    """Groups that are rendered when a batch needs them: new groups in each epoch.

    A subclass gives `groups`. It stands in `data.train` by its class path, alone or beside folders
    of shards. Its groups are a function of the epoch and their number, so a resumed run sees the
    same rest, with any number of ranks and workers.

    Features of its images cannot be stored, and nothing can be mined in it.

    Args:
        records: Groups in an epoch.
        weight: How often training sees a group of this set, relative to a set of weight 1.
    """

    def __init__(self, records: PositiveInt, weight: Weight = 1.0) -> None:
        super().__init__(type(self).__name__, weight)
        self.records = records

    @abstractmethod
    def groups(self, epoch: int, start: int, count: int) -> Sequence[Group]:
        """Returns groups `start` to `start + count` (exclusive) of an epoch, with their images.

        Training may ask for more than `records` of them: `start` goes on, it does not start over.
        """

    @cached_property
    @override
    def manifest(self) -> Manifest:
        # Groups are a function of the class and its arguments, so these stand for their content.
        spec = self.spec()
        rendered = ShardInfo(
            file="rendered while training",
            records=self.records,
            images=self.records,
            bytes=0,
            sha256=digest(spec),
        )
        return Manifest(spec["class_path"], spec["init_args"], {}, (rendered,))

    @property
    @override
    def files(self) -> list[Shard]:
        raise UserError(
            f"expected shards, got {self.path}, which renders while training: set "
            "model.store to null, leave out what reads all captions first, or build shards"
        )
