"""`torchmetrics.Metric` classes over the functions of this room, for any LightningModule.

In: scores or embeddings, batch by batch and rank by rank. Out: one number over all of them.
Never: chance levels and intervals; `vlmtune evaluate` reports those.
"""

from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, zeros
from torch.nn.functional import normalize
from torchmetrics import MeanMetric, Metric
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from vlmtune.metrics.average_precision import class_average_precision
from vlmtune.metrics.multiple_choice import Ties, choice_credit
from vlmtune.metrics.paired_accuracy import image_correct, text_correct
from vlmtune.metrics.ranking import recall_at
from vlmtune.metrics.retrieval import bank_ranks


class MultipleChoiceAccuracy(MeanMetric):
    """Accuracy of choosing the true candidate (ARO, SugarCrepe, CREPE, VALSE).

    Args:
        ties: The rule for ties, see `choice_credit`.
        options: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> accuracy = MultipleChoiceAccuracy()
        >>> accuracy.update(torch.tensor([[0.5, 0.1], [0.1, 0.5]]))  # column 0 is true
        >>> accuracy.update(torch.tensor([[0.9, 0.2], [0.3, 0.2]]))
        >>> accuracy.compute().item()
        0.75
    """

    higher_is_better: bool | None = True

    def __init__(self, ties: Ties = "wrong", **options: Any) -> None:
        super().__init__(**options)
        self.ties: Ties = ties
        # Of metrics with equal states a `MetricCollection` updates one, so each has its own.
        self.add_state(f"ties_{ties}", zeros(()), "sum")

    @override
    def update(self, scores: Float[Tensor, "n m"]) -> None:  # type: ignore[override]
        super().update(choice_credit(scores, self.ties))


class PairedAccuracy(MeanMetric):
    """Text, image or group accuracy of 2 x 2 items (Winoground, Cola, EqBen).

    Args:
        side: "text" (each image prefers its caption), "image" (each caption prefers its image), or
            "group" (both).
        options: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from torchmetrics import MetricCollection
        >>> sides = MetricCollection({side: PairedAccuracy(side) for side in ("text", "image")})
        >>> sides.update(torch.tensor([[[0.9, 0.95], [0.1, 0.96]]]))  # rows: images
        >>> {side: value.item() for side, value in sides.compute().items()}
        {'image': 1.0, 'text': 0.0}
    """

    higher_is_better: bool | None = True

    def __init__(self, side: Literal["text", "image", "group"] = "group", **options: Any) -> None:
        super().__init__(**options)
        self.side = side
        self.add_state(f"side_{side}", zeros(()), "sum")  # as for `MultipleChoiceAccuracy`

    @override
    def update(self, scores: Float[Tensor, "n 2 2"]) -> None:  # type: ignore[override]
        if self.side == "text":
            correct = text_correct(scores)
        elif self.side == "image":
            correct = image_correct(scores)
        else:
            correct = text_correct(scores) & image_correct(scores)
        super().update(correct.float())  # the mean of 1 and 0 is the accuracy


class ColaMeanAveragePrecision(Metric):
    """Cola's mAP: the mean AP of the classes, each over the images of its pool.

    Args:
        treatment: How to treat a class whose positives are all outside its pool, see
            `class_average_precision`.
        options: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2]])  # images x classes
        >>> labels = torch.tensor([[True, False], [False, True]])
        >>> mean_ap = ColaMeanAveragePrecision()
        >>> mean_ap.update(scores, labels, pool=torch.ones(2, 2, dtype=torch.bool))
        >>> mean_ap.compute().item()
        1.0
    """

    full_state_update: bool | None = False
    higher_is_better: bool | None = True
    scores: list[Tensor]
    labels: list[Tensor]
    pool: list[Tensor]

    def __init__(
        self, treatment: Literal["strict", "reference"] = "strict", **options: Any
    ) -> None:
        super().__init__(**options)
        self.treatment: Literal["strict", "reference"] = treatment
        for state in ("scores", "labels", "pool"):
            self.add_state(state, [], dist_reduce_fx="cat")

    @override
    def update(
        self, scores: Float[Tensor, "n C"], labels: Bool[Tensor, "n C"], pool: Bool[Tensor, "n C"]
    ) -> None:
        self.scores.append(scores)
        self.labels.append(labels)
        self.pool.append(pool)

    @override
    def compute(self) -> Tensor:
        classes = class_average_precision(
            scores=dim_zero_cat(self.scores),
            labels=dim_zero_cat(self.labels),
            pool=dim_zero_cat(self.pool),
            treatment=self.treatment,
        )
        return classes.values[classes.counted].mean()


class RetrievalRecallAtK(Metric):
    """Recall@k of images by captions or of captions by images, over all images and captions seen.

    A query is a hit if any true partner is among the k with the highest cosine; ties count against
    the model. Pass each image and each caption once: a distributed sampler that repeats samples to
    fill the last batch changes the result.

    Args:
        k: The cutoff.
        query: The modality of the queries.
        options: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> recall = RetrievalRecallAtK(k=1, query="image")
        >>> images, texts = torch.eye(2), torch.tensor([[1.0, 0.1], [0.9, 0.2], [0.1, 1.0]])
        >>> recall.update(images, texts, torch.tensor([7, 8]), torch.tensor([7, 7, 8]))
        >>> recall.compute().item()
        1.0
    """

    full_state_update: bool | None = False
    higher_is_better: bool | None = True
    images: list[Tensor]
    texts: list[Tensor]
    image_ids: list[Tensor]
    text_image_ids: list[Tensor]

    def __init__(
        self, k: int = 1, query: Literal["image", "text"] = "image", **options: Any
    ) -> None:
        super().__init__(**options)
        self.k = k
        self.query = query
        for state in ("images", "texts", "image_ids", "text_image_ids"):
            self.add_state(state, [], dist_reduce_fx="cat")

    @override
    def update(
        self,
        images: Float[Tensor, "n d"],
        texts: Float[Tensor, "m d"],
        image_ids: Int[Tensor, "n"],
        text_image_ids: Int[Tensor, "m"],
    ) -> None:
        self.images.append(normalize(images, dim=1))
        self.texts.append(normalize(texts, dim=1))
        self.image_ids.append(image_ids)
        self.text_image_ids.append(text_image_ids)

    @override
    def compute(self) -> Tensor:
        images = dim_zero_cat(self.images)
        texts = dim_zero_cat(self.texts)
        scores = images @ texts.T
        image_ids = dim_zero_cat(self.image_ids)
        text_image_ids = dim_zero_cat(self.text_image_ids)
        # Ranks may see the parts in any order, so ids and not positions say what is true.
        same = image_ids[:, None] == text_image_ids
        true = same.cpu().nonzero()
        by_image, by_text = bank_ranks(scores.cpu(), true)
        ranks = by_image if self.query == "image" else by_text
        return recall_at(ranks, self.k).double().mean()
