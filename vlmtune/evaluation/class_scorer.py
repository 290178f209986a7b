"""From images to scores of classes: the classifier of an image model, which reads no texts.

In: images. Out: their scores of the model's classes, in float32 on the CPU. Never: a caption.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.evaluation.scorer import Scorer
from vlmtune.features.pictures import Picture


class ClassScorer(Scorer):
    """Scores images for the classes of the backbone's own classifier.

    Benchmarks of classification ask it in place of scores of prompts: an ImageNet classifier is
    measured on ImageNet and PUG: ImageNet, as in Bordes et al. 2023, PUG, table 1. Its embeddings
    are what the classifier reads, so features are stored as for any other model.
    """

    @property
    def labels(self) -> Sequence[str]:
        """What the classes are called, in the order of the classifier's outputs."""
        return self.backbone.labels

    def class_scores(
        self, images: Sequence[Picture], outputs: Sequence[int]
    ) -> Float[Tensor, "N C"]:
        """Scores N images for C of the classes, given by their positions in `labels`."""
        columns = list(outputs)  # a range cannot index a tensor
        parts = []
        with torch.no_grad():
            # In parts: 21,000 classes of 50,000 images would not fit beside the chosen ones.
            for embeddings in self.embed_images(images).split(self.batch_size):
                scores = self.backbone.classify(embeddings)
                parts.append(scores[:, columns])
        return torch.cat(parts)

    @override
    @contextlib.contextmanager
    def session(self, images: Sequence[Picture], texts: Sequence[str]) -> Iterator[None]:
        """Serves several calls on parts of `images`; prompts are not encoded."""
        with super().session(images, ()):
            yield
