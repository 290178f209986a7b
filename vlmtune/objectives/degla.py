"""DeGLA's losses: a caption's own negatives, and a moving average of the model as its teacher.

In: scores, embeddings, and embeddings by the averaged weights. Out: a loss.
Never: a comparison with the captions of other images.
"""

from typing import ClassVar

from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import average_of, contrast, embedded_of, mean_over_images
from vlmtune.types import ScoreShard, positions, send

TEXT_SCALE = 10.0
"""The factor on cosines between texts, which the paper fixes."""


class DeGLA(ShardedObjective):
    r"""$L = a L_{image} + b L_{text} + c L_{average}$: what DeGLA adds to `InfoNCE`.

    For an image i and a true caption j of its group, with $N_i$ the false captions of the group:

    - $L_{image}$ is the mean of
      $-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \in N_i} e^{s_{ik}}}$.
    - $L_{text}$ is the mean of $-\log \frac{e^{10 \langle w_j, \bar w_j \rangle}}
      {e^{10 \langle w_j, \bar w_j \rangle} + \sum_{k \in N_i} e^{10 \langle w_j, w_k \rangle}}$:
      a caption stays where the averaged weights embed it, away from its negatives.
    - $L_{average} = \frac{1}{N} \big( \sum_i \lVert v_i - \bar v_i \rVert^2 + \sum_j \lVert w_j -
      \bar w_j \rVert^2 \big)$ over all N images and all texts, false ones included.

    v and w are normalised embeddings of images and texts. $\bar v$ and $\bar w$ are embeddings by a
    moving average of the trained weights, and carry no gradient; `average_decay` of the module says
    how slowly the average follows. Both contrasts are means over an image's captions, then over
    images.

    It compares no image with captions of other images: add it to `InfoNCE`.

    Choose it where training on hard negatives would make a model forget.

    - Requirements: a dual adapter, and hard negatives, of the records or by `data.negatives`.
    - Recommended: the default factors beside `InfoNCE`, and four negatives a caption.
    - Relations: `Distillation` keeps the frozen backbone's scores, and never moves its target.
    - Config: `--config configs/experiments/overlays/degla.yaml`.

    Source: Hu et al. 2025, "Decoupled Global-Local Alignment" (arXiv 2504.16801). Its code sums the
    squared distances of the 32 images and 160 texts of a GPU and multiplies them by 0.005; here
    their sum is divided by the number of images, so c = 32 * 0.005. In that code
    (github.com/xiaoxing2001/DeGLA, commit 1c5e960) $L_{text}$ takes the negatives of other
    captions, by an order that differs from the order in which they are stored; here a caption meets
    its own negatives, as the paper says.

    Args:
        image_factor: Factor a.
        text_factor: Factor b.
        average_factor: Factor c.

    Example:
        >>> import torch
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> one, two = torch.eye(2)[:1], torch.eye(2)
        >>> same = Embedded(one, two, torch.tensor(1.0))
        >>> scores = Scores(torch.zeros(1, 2), torch.ones(1, 2) > 0, same, average=same)
        >>> truth, same_group = torch.tensor([[True, False]]), torch.ones(1, 2) > 0
        >>> objective = DeGLA(image_factor=1.0, text_factor=0.0)
        >>> objective(scores, Targets(truth, same_group, same_group))
        tensor(0.6931)
    """

    needs = frozenset({"embedded", "average"})
    regulariser: ClassVar[bool] = True

    def __init__(
        self,
        weight: Factor = 1.0,
        image_factor: Factor = 0.1,
        text_factor: Factor = 0.1,
        average_factor: Factor = 0.16,
    ) -> None:
        super().__init__(weight)
        self.image_factor = image_factor
        self.text_factor = text_factor
        self.average_factor = average_factor

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        embedded = embedded_of(shard.rows, "DeGLA")
        average = average_of(shard.rows, "DeGLA")
        device = embedded.image.device
        # Pairs are found on the CPU: on a GPU their number would have to be waited for.
        targets = shard.row_targets.on_cpu()
        true = targets.truth & targets.same_group
        false = ~targets.truth & targets.same_group
        row, text = positions(true, device)
        true = send(true, device)
        negatives = send(false, device)[row]
        # An image with its caption, against the false captions of its group.
        values = shard.rows.values[row]
        true_values = values.gather(1, text[:, None]).squeeze(1)
        image_terms = contrast(true_values, values, negatives)
        image_loss = mean_over_images(image_terms, row, true, group)
        # The caption with itself by the averaged weights, against the same false captions.
        captions = embedded.text[text]
        kept = (captions * average.text[text]).sum(dim=1)
        others = captions @ embedded.text.T
        text_terms = contrast(TEXT_SCALE * kept, TEXT_SCALE * others, negatives)
        text_loss = mean_over_images(text_terms, row, true, group)
        contrasts = self.image_factor * image_loss + self.text_factor * text_loss
        return contrasts + self.average_factor * self._distance(shard, group)

    def _distance(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        """How far embeddings are from the averaged ones: each rank adds its images and texts."""
        images = embedded_of(shard.rows, "DeGLA").image
        texts = embedded_of(shard.columns, "DeGLA").text
        image_gaps = images - average_of(shard.rows, "DeGLA").image
        text_gaps = texts - average_of(shard.columns, "DeGLA").text
        distances = image_gaps.square().sum() + text_gaps.square().sum()
        count = group.sum(images.new_full((), len(images)))
        return distances / count.clamp_min(1)
