"""A moving average of the model in training, which embeds each batch for objectives.

In: the trained weights after each step, and batches. Out: embeddings by the averaged weights.
Never: a gradient, or a validation or export of the average: that is `EMA`.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.features.store_key import Modality
from vlmtune.training.batch_features import BatchFeatures
from vlmtune.training.score_shards import TrainingShard, dual_score_shard
from vlmtune.types import Batch, Features, Pooled


class AverageTeacher(nn.Module):
    r"""The model with $\bar\theta_k = d\, \bar\theta_{k-1} + (1 - d)\, \theta_k$ after step k.

    $\bar\theta_0$ are the weights before training. Frozen weights are the model's own. In training
    mode it has the dropout of the adapter, too.

    Args:
        backbone: The backbone in training.
        adapter: Its dual adapter, attached to it.
        decay: d.
    """

    def __init__(self, backbone: Backbone, adapter: Adapter, decay: float) -> None:
        super().__init__()
        assert isinstance(adapter, DualAdapter), "one embedding per image and text"
        self.decay = decay
        self._step = 0  # the last step that was added
        self._trained = list(trained_state(backbone, adapter))
        frozen = {}
        for parameter in [*backbone.parameters(), *adapter.parameters()]:
            if not parameter.requires_grad:
                frozen[id(parameter)] = parameter
        # In one copy, as the adapter may hold modules of the backbone. What is frozen is shared.
        self.backbone, self.adapter = copy.deepcopy((backbone, adapter), frozen)
        self.features = BatchFeatures(self.backbone, adapter.image_input, adapter.text_input)
        self.requires_grad_(False)

    @override
    def train(self, mode: bool = True) -> "AverageTeacher":
        """Sets training mode as the model does: some adapters embed otherwise in training."""
        super().train(mode)
        self.backbone.eval()
        self.adapter.train(mode)  # some of its modules lie in the backbone
        return self

    @torch.no_grad()
    def follow(self, backbone: Backbone, adapter: Adapter, step: int) -> None:
        """Adds the weights after a step to the average, once."""
        if step == self._step:  # of the same step, if batches are accumulated
            return
        self._step = step
        average = self.weights()
        for name, value in trained_state(backbone, adapter).items():
            if value.is_floating_point():
                average[name].lerp_(value, 1 - self.decay)
            else:
                average[name].copy_(value)

    def weights(self) -> dict[str, Tensor]:
        """Returns the averaged weights themselves, by their names in `trained_state`."""
        state = {}
        for name, value in self.adapter.state_dict().items():
            state[f"adapter.{name}"] = value
        for name, parameter in self.backbone.named_parameters():
            state[f"backbone.{name}"] = parameter.data
        return {name: state[name] for name in self._trained}

    def saved(self) -> dict[str, Any]:
        """Returns what a checkpoint holds of it."""
        return {"step": self._step, "weights": self.weights()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continues from what a checkpoint holds of it."""
        self._step = saved["step"]
        for name, value in self.weights().items():
            value.copy_(saved["weights"][name])

    @torch.no_grad()
    def add(
        self,
        shard: TrainingShard,
        batch: Batch,
        known: Mapping[Modality, Features],
        chunk: int | None,
        group: ProcessGroup,
    ) -> TrainingShard:
        """Returns the scores with the embeddings by the averaged weights beside them.

        `known` are frozen features of the batch, which the model shares.
        """
        if batch.token_ids is not None:
            self.backbone.use_tokens(batch.texts, batch.token_ids)
        image, text = self.features.encode_both(batch, chunk, known)
        images = Pooled(self.adapter.embed_image(image))
        texts = Pooled(self.adapter.embed_text(text))
        averaged = dual_score_shard(self.adapter, images, texts, shard.layout, group)
        rows = replace(shard.rows, average=averaged.rows.embedded)
        columns = replace(shard.columns, average=averaged.columns.embedded)
        return replace(shard, rows=rows, columns=columns)
