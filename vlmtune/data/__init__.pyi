# The public names of this room: type checkers and `__init__.py` read them here.

from .augmentation import augmented as augmented
from .by_image import by_image as by_image
from .caption_negatives import CaptionNegatives as CaptionNegatives
from .caption_units import CaptionUnits as CaptionUnits
from .datamodule import ShardDataModule as ShardDataModule
from .group_changes import BatchNeighbours as BatchNeighbours
from .images import open_image as open_image
from .joined_images import JoinedImages as JoinedImages
from .noun_phrases import NounPhrases as NounPhrases
from .rendered import RenderedSet as RenderedSet
from .samples import write_samples as write_samples
from .shards import ShardSet as ShardSet
