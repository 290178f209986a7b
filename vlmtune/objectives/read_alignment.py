"""READ's paraphrase alignment: two captions of one image match each other.

In: text embeddings and true pairs. Out: a loss. Never: a comparison of a text with an image.
"""

from typing import ClassVar

import torch
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Loss, ShardedObjective
from vlmtune.objectives.functional import count_of, embedded_of, gather_pairs, mean_contrast
from vlmtune.types import ScoreShard


class ReadAlignment(ShardedObjective):
    r"""Contrastive loss among texts: captions of one image against captions of others.

    For a text a and each text p that is true of an image of which a is true as well,
    $-\log \frac{e^{\lambda \langle v_a, v_p \rangle}}{e^{\lambda \langle v_a, v_p \rangle}
    + \sum_n e^{\lambda \langle v_a, v_n \rangle}}$ with $\lambda$ the scale of the scores and n
    over the texts that are true of some image but of no image of a. It is averaged over the p
    of a, then over the texts a with such a p. Texts without an image (hard negatives) are left out.
    The denominator leaves out further captions of the same image. A corpus with one caption per
    image has loss 0.

    The released method pairs each caption with one generated or annotated paraphrase and adds the
    loss with factor 0.5. It has a term from paraphrase to caption only, against other images'
    captions. Here every ordered pair is a term, and captions as well as paraphrases of other images
    are negatives, so there are twice as many and the loss is larger. READ's other half,
    reconstruction by a frozen decoder, is left out.

    It trains texts alone: add it to a contrastive loss.

    Choose it where images have several captions that mean the same.

    - Requirements: two or more captions an image; with one each it is 0.
    - Recommended: add it to `InfoNCE` with `weight: 0.5`, the factor of the released method.
    - Relations: a contrastive loss like `InfoNCE`, but between texts.
    - Config: `--model.objectives '[info_nce, read_alignment]'`.

    Source: Kwon et al. 2025 (READ), the sentence-level alignment objective.

    Example:
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> v = torch.eye(3)
        >>> scores = Scores(v[:2], torch.ones(2, 3) > 0, Embedded(v[:2], v, torch.ones(())))
        >>> true = torch.tensor([[True, True, False], [False, False, True]])
        >>> ReadAlignment()(scores, Targets(true, true, true))
        tensor(0.6931)
    """

    needs = frozenset({"embedded"})
    regulariser: ClassVar[bool] = True

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        # Anchors are this rank's texts; texts of all ranks are compared with them.
        anchors = embedded_of(shard.columns, "ReadAlignment").text
        embedded = embedded_of(shard.rows, "ReadAlignment")
        total = len(embedded.text)
        row, text = shard.row_targets.true_pairs()
        images, captions = gather_pairs(row, text, shard, group)
        # How many images text a of this rank and text p of all ranks have in common.
        truth = shard.column_targets.truth[images]
        true = truth.T.to(torch.int32)
        zeros = true.new_zeros(len(anchors), total)
        common = zeros.index_add(1, captions, true)
        paraphrases = common > 0
        # Hard negatives describe no image: they are neither anchors nor negatives.
        has_image = paraphrases.any(dim=1, keepdim=True)
        described = count_of(captions, total) > 0
        negatives = ~paraphrases & has_image & described
        # A text is not a paraphrase of itself.
        position = torch.arange(len(anchors), device=anchors.device)
        paraphrases[position, position + shard.column_start] = False
        cosines = anchors @ embedded.text.T
        values = embedded.scale * cosines
        return mean_contrast(values, paraphrases, negatives, group)
