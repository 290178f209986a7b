"""Another trained model's scores of a training batch, for objectives that learn from them.

In: a model and batches. Out: its scores of the pairs that objectives read. Never: a gradient, or a
change of the model.
"""

from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import Adapter
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.features.store_key import StoreDType
from vlmtune.model.resolving import load
from vlmtune.training.batch_features import BatchFeatures, CorpusContent
from vlmtune.training.score_shards import TrainingShard
from vlmtune.types import Batch, Scores, send


class Teacher(nn.Module):
    """A model that scores pairs of each rank's batch, with the weights that it has.

    Its frozen features come from the feature store, where it may share rows with the student. Pairs
    stay within a rank, as those of a joint adapter do.

    Args:
        backbone: Its backbone.
        adapter: Its adapter, dual or joint, attached to that.
        whole: Whether it scores all pairs of a rank's batch, or only those within groups.
    """

    def __init__(self, backbone: Backbone, adapter: Adapter, whole: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        # A training method may wrap the adapter that scores.
        self.adapter = adapter.scoring
        self.whole = whole
        self.origin: dict[str, str] = {}  # for logs
        self.features = BatchFeatures(backbone, self.adapter.image_input, self.adapter.text_input)
        self.requires_grad_(False)
        self.eval()

    @override
    def train(self, mode: bool = True) -> "Teacher":
        """Stays in evaluation mode: some adapters score otherwise in training."""
        del mode
        return super().train(False)

    def open(self, root: Path, corpus: CorpusContent, dtype: StoreDType) -> None:
        """Opens the stores of its frozen features, building those that are missing."""
        self.features.open(root, corpus, self.backbone.fingerprint, dtype)

    def check_pixels(self, student: Backbone) -> None:
        """Raises a `UserError` if it would read pixels that are prepared for another backbone.

        Images in the feature store were prepared by its own backbone.
        """
        if self.features.images is not None:
            return
        image = Image.linear_gradient("L").convert("RGB")
        wanted = self.backbone.preprocess(image)
        given = student.preprocess(image)
        if wanted.shape != given.shape or not wanted.equal(given):
            raise UserError(
                f"expected a teacher that reads the pixels of {student.title}, got one of "
                f"{self.backbone.title}: set model.store, if its images are frozen, or choose "
                "another"
            )

    @torch.no_grad()
    def add(
        self, shard: TrainingShard, batch: Batch, chunk: int | None, group: ProcessGroup
    ) -> TrainingShard:
        """Returns the scores with the teacher's scores beside them."""
        pairs = batch.targets.on_cpu().same_group
        if self.whole:
            pairs = torch.ones_like(pairs)
        image, text = self.features.encode_both(batch, chunk, {})
        scores = self.adapter(image, text, pairs)
        # A dual teacher scores every pair, and those that nobody asked for must not teach.
        computed = send(pairs, scores.values.device)
        values = scores.values.masked_fill(~computed, 0)
        return with_teacher(shard, Scores(values, computed), group)


def load_teacher(name: str, whole: bool) -> Teacher:
    """Returns the model of this name as a teacher; see `vlmtune.load` for names."""
    # The trainer moves it to the device of the student.
    model = load(name, device="cpu")
    teacher = Teacher(model.backbone, model.adapter, whole)
    teacher.origin = {"name": name, "digest": model.digest()}
    return teacher


def with_teacher(shard: TrainingShard, teacher: Scores, group: ProcessGroup) -> TrainingShard:
    """Adds a teacher's scores of each rank's n images and t texts to the scores of all ranks."""
    if shard.contrast is not None:
        contrast = with_teacher(shard.contrast, teacher, group)
        shard = replace(shard, contrast=contrast)
    layout = shard.layout
    if group.size == 1:
        rows = replace(shard.rows, teacher=teacher)
        return replace(shard, rows=rows, columns=rows)
    # Only scored pairs travel, each with its position: no rank holds the matrix of all ranks.
    image, text = teacher.computed.nonzero(as_tuple=True)
    row = image + layout.row_start
    column = layout.text_columns[text]
    positions = group.gather(torch.stack([row, column], dim=1))
    values = group.gather(teacher.values[teacher.computed])
    # Then each rank takes those that lie in its rows, and those that lie in its columns.
    teacher = _placed(positions, values, layout.row_start, 0, shard.rows.computed)
    rows = replace(shard.rows, teacher=teacher)
    teacher = _placed(positions, values, 0, layout.column_start, shard.columns.computed)
    columns = replace(shard.columns, teacher=teacher)
    return replace(shard, rows=rows, columns=columns)


def _placed(
    positions: Int[Tensor, "P 2"],
    values: Float[Tensor, "P"],
    top: int,
    left: int,
    strip: Bool[Tensor, "rows columns"],
) -> Scores:
    """The scores of those pairs that lie in a strip, whose first pair is (top, left)."""
    height, width = strip.shape
    row = positions[:, 0] - top
    column = positions[:, 1] - left
    in_rows = (row >= 0) & (row < height)
    in_columns = (column >= 0) & (column < width)
    inside = in_rows & in_columns
    position = (row[inside], column[inside])
    scores = values.new_zeros(height, width)
    scores[position] = values[inside]
    computed = torch.zeros_like(strip)
    computed[position] = True
    return Scores(scores, computed)
