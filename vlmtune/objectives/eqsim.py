"""EqSim: scores change as much as the meaning does, between close and between distant true pairs.

In: scores and targets. Out: a loss.
Never: a reward for true pairs above false ones: add it to a retrieval loss.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import PositiveInt
from torch import Tensor
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import reference_of
from vlmtune.objectives.true_pairs import By, Normalise, PairMatrix, TruePairs, partners
from vlmtune.types import Scores, ScoreShard, Targets


def v2_deviation(
    s11: Float[Tensor, "*#p"],
    s12: Float[Tensor, "*#p"],
    s21: Float[Tensor, "*#p"],
    s22: Float[Tensor, "*#p"],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""Returns the text side and the image side of v2 (eq. 6), squared.

    Text side: $((s_{11} - s_{12}) - (s_{22} - s_{21}))^2$, the text changes and the image stays.
    Image side: $((s_{11} - s_{21}) - (s_{22} - s_{12}))^2$. Their sum is
    $2 (s_{11} - s_{22})^2 + 2 (s_{12} - s_{21})^2$: v2 contains v1 and holds $s_{11} = s_{22}$ too.
    """
    diagonal = s11 - s22
    cross = s12 - s21
    text_side = (diagonal - cross).square()
    image_side = (diagonal + cross).square()
    return text_side, image_side


class EqSim(ShardedObjective):
    r"""Holds the scores of two true pairs (image 1, text 1), (image 2, text 2) equivariant.

    v1, for distant pairs: $[(s_{12} - s_{21})^2 - \alpha_1]_+$. v2, for close pairs:
    $[(s_{11} - s_{12} - s_{22} + s_{21})^2 - \alpha_2]_+$ for a change of text, and
    $[(s_{11} - s_{21} - s_{22} + s_{12})^2 - \alpha_2]_+$ for a change of image. Their sum, times
    `weight`, is added to a retrieval loss such as InfoNCE: alone it is 0 where all scores are
    equal.

    Choose it for scores that should follow small changes of meaning.

    - Requirements: images with captions; close pairs (few words apart) help most.
    - Recommended: add it to a retrieval loss; `normalise: sigmoid` for matching scores.
    - Relations: v1 on all pairs, on cosines, is the cross-modal half of `CyClip`, up to a factor.
    - Config: `--model.objectives '[info_nce, eqsim]'`.

    Source: Wang et al. 2023 (EqBen), section 3, eq. 5 and 6; the values in appendix C. The defaults
    are the paper's. `EqSim.paper` states what the paper leaves open, `EqSim.released` has the
    values of the authors' code for FIBER and says where it differs.

    True pairs lie within groups. Every caption of an image makes a pair. Two pairs are weighted by
    one over the captions of either image, so that each image counts as one. With `normalise` "none"
    or "sigmoid" and all pairs compared, the loss is the mean over draws of one caption per image.
    With the default row softmax and top k it is not, and can be far smaller: further captions of
    other images stay in the softmax and among the k. Two pairs are compared if all four scores are
    computed and neither text is true of the other's image. Texts without an image and images
    without a text only widen the softmax.

    Args:
        weight: The $\beta$ of the paper, in {0.2, 0.5, 1.0} there.
        v1: Pairs of true pairs under v1: "distant" ones (section 3), "all" (section 5.4) or "none".
        v2: Pairs of true pairs under v2: "close" ones, "all" or "none" (the ablations of table 6).
        close: How close partners are selected: the "topk" scores, or a "draw" in proportion to
            their softmax (released code).
        by: Where partners come from: the "row" (texts for the image), or the "union" of the row
            and the column (images for the text).
        k: Partners from the row, and from the column, at most.
        ranked_by: What ranks partners: "scores", before normalisation, or "reference", the scores
            of the frozen backbone (the cached scores of METER, appendix C).
        normalise: What s is: the score itself ("none"), its "sigmoid" (an image-text-matching
            logit), or a softmax over the "row" (texts of an image).
        alpha1: Margin of v1.
        alpha2: Margin of v2.
        hinge: What margins are subtracted from: each "pair" (the formula), or the "mean" (released
            code).
        count: Whether a pair that is close in both directions, or listed twice, counts "once", or
            "each" listing counts (released code).
        v1_over: Divisor of the sum of v1: its "pairs", or the "square" of the number of images
            (released code).

    Example:
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> scores = Scores.full(torch.tensor([[0.9, 0.5], [0.3, 0.8]]))
        >>> EqSim(v1="all", v2="none", normalise="none", alpha1=0.0)(scores, Targets(eye, eye, eye))
        tensor(0.0400)
    """

    regulariser: ClassVar[bool] = True

    def __init__(
        self,
        weight: Factor = 0.5,
        v1: Literal["distant", "all", "none"] = "distant",
        v2: Literal["close", "all", "none"] = "close",
        close: Literal["topk", "draw"] = "topk",
        by: By = "union",
        k: PositiveInt = 8,
        ranked_by: Literal["scores", "reference"] = "scores",
        normalise: Normalise = "row",
        alpha1: Factor = 0.04,
        alpha2: Factor = 0.04,
        hinge: Literal["pair", "mean"] = "pair",
        count: Literal["once", "each"] = "once",
        v1_over: Literal["pairs", "square"] = "pairs",
    ) -> None:
        super().__init__(weight)
        if v1 == v2 == "none":
            raise UserError("expected v1 or v2 on some pairs, got none for both: set one")
        self.v1 = v1
        self.v2 = v2
        self.close = close
        self.by: By = by
        self.k = k
        self.ranked_by = ranked_by
        self.normalise: Normalise = normalise
        self.alpha1 = alpha1
        self.alpha2 = alpha2
        self.hinge = hinge
        self.count = count
        self.v1_over = v1_over
        if ranked_by == "reference":
            self.needs = frozenset({"reference"})

    @classmethod
    def paper(cls, v1: Literal["distant", "all"] = "distant", **changes: Any) -> "EqSim":
        r"""EqSim as the paper describes it (section 3, appendix C); these are the defaults too.

        The paper leaves open, and the defaults choose: the middle of its values of $\alpha$ and
        $\beta$; the softmax over the texts of an image at the learned temperature, as in the code;
        the top 8 texts of each image and the top 8 images of each text, each pair once; for v1 and
        v2 the mean over their pairs, with the two sides of v2 added. $s_{11} > s_{12}$ and
        $s_{22} > s_{21}$ (eq. 5) are left to the retrieval loss. For METER use
        `normalise="sigmoid"` and `ranked_by="reference"`.

        Example:
            >>> EqSim.paper().spec() == EqSim().spec()
            True
        """
        return cls(v1=v1, **changes)

    @classmethod
    def released(cls, **changes: Any) -> "EqSim":
        r"""EqSim as the authors' code for FIBER runs it, by its published command.

        Where it differs from the paper:

        - `close="draw"`, k = 4: four images for each text and four texts for each image are sampled
          without replacement in proportion to their softmax (paper: the top 8);
        - `count="each"`: every listing of a close pair counts;
        - `hinge="mean"`: margins are subtracted from the mean of the batch (paper: from each pair),
          of each side of v2 by itself;
        - `alpha1=0.0`, `alpha2=0.1`: two margins (paper: one);
        - `v1_over="square"`: the sum of v1 is divided by the square of the batch size, as if close
          pairs and the diagonal were zeros (paper: unstated).

        In that code each rank applies v2 to its images alone, no gradient crosses ranks, and other
        captions of an image are negatives. Here the ranks compute the loss of one process, and
        truth is known across the batch. The code also adds the contrastive loss and the matching
        loss of hard negatives, where the paper names one retrieval loss.

        Example:
            >>> EqSim.released().spec()["init_args"]["alpha2"]
            0.1
        """
        values: dict[str, Any] = {
            "close": "draw",
            "k": 4,
            "alpha1": 0.0,
            "alpha2": 0.1,
            "hinge": "mean",
            "count": "each",
            "v1_over": "square",
        }
        return cls(**(values | changes))

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        shard = _in_single_precision(shard)
        pairs = TruePairs(shard, group)
        v1_weight, v2_weight = self._weights(pairs, shard)
        rows = shard.rows.values
        columns = shard.columns.values
        scores = pairs.four_scores(rows, columns, self.normalise)
        # The weights of an image's captions sum to 1, so their sum counts images.
        images = pairs.weight.sum()
        local_images = pairs.weight[pairs.local].sum()
        fraction = local_images / images.clamp_min(1)
        losses = []
        if self.v1 != "none":
            # The divisor: the weight of the pairs, or the square of the batch.
            over = images.square()
            if self.v1_over == "pairs":
                over = group.sum(v1_weight.sum())
            deviation = (scores.s12 - scores.s21).square()
            loss = self._hinged(deviation, v1_weight, over, self.alpha1, fraction, group)
            losses.append(loss)
        if self.v2 != "none":
            over = group.sum(v2_weight.sum())
            for deviation in v2_deviation(*scores):
                loss = self._hinged(deviation, v2_weight, over, self.alpha2, fraction, group)
                losses.append(loss)
        return torch.stack(losses).sum()

    def _weights(self, pairs: TruePairs, shard: ScoreShard) -> tuple[PairMatrix, PairMatrix]:
        """The weights of pairs under v1 and under v2; captions of an image share its weight."""
        weight = pairs.weight[pairs.local, None] * pairs.weight[None, :]
        v1_weight = weight * pairs.comparable
        v2_weight = weight * pairs.comparable
        if self.v1 == "distant" or self.v2 == "close":
            close, times = self._close(pairs, shard)
            if self.v1 == "distant":
                distant = pairs.comparable & ~close
                v1_weight = weight * distant
            if self.v2 == "close":
                v2_weight = weight * times
        return v1_weight, v2_weight

    @override
    def diagnose(self, scores: Scores, targets: Targets) -> dict[str, float]:
        # A draw of close partners must not move the random state of training.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            shard = _in_single_precision(ScoreShard(scores, targets, scores, targets))
            pairs = TruePairs(shard, ProcessGroup(alone=True))
            close, _ = self._close(pairs, shard)
            four = pairs.four_scores(shard.rows.values, shard.columns.values, self.normalise)
            text, image = v2_deviation(*four)
        # Mean deviations from v2, both sides summed (section 5.4: the smaller the better).
        deviation = text + image
        weight = pairs.weight[:, None] * pairs.weight[None, :]
        weight = weight * pairs.comparable
        kinds = weight * torch.stack([close, ~close])
        totals = (deviation * kinds).sum(dim=(1, 2))
        weights = kinds.sum(dim=(1, 2))
        # Read at once: each number alone would wait for a GPU.
        all_totals, all_weights = torch.stack([totals, weights]).tolist()
        means = {}
        for name, total, over in zip(("close", "distant"), all_totals, all_weights, strict=True):
            if over:
                means[name] = total / over
        return means

    def _close(self, pairs: TruePairs, shard: ScoreShard) -> tuple[Bool[Tensor, "a A"], PairMatrix]:
        """Whether two pairs are close, and how often that counts for the local one."""
        rows = shard.rows.values
        columns = shard.columns.values
        if self.ranked_by == "reference":
            rows = reference_of(shard.rows, "EqSim")
            columns = reference_of(shard.columns, "EqSim")
        # Closeness is symmetric: it is enough that either pair lists the other.
        draw = self.close == "draw"
        listed = partners(pairs, rows, columns, self.k, self.by, draw)
        forward, backward = pairs.count_listings(listed)
        close = forward + backward > 0
        times = close if self.count == "once" else forward
        return close, times.to(pairs.weight.dtype)

    def _hinged(
        self,
        deviation: PairMatrix,
        weight: PairMatrix,
        over: Loss,
        margin: float,
        fraction: Loss,
        group: ProcessGroup,
    ) -> Loss:
        """This rank's part of the excess over the margin; `fraction` of the pairs are local."""
        over = torch.where(over > 0, over, 1.0)
        if self.hinge == "pair":
            excess = (deviation - margin).relu()
            return (excess * weight).sum() / over
        part = (deviation * weight).sum() / over
        # The margin is subtracted from the mean over all ranks, each of which has a part of both.
        exceeds = group.sum(part.detach()) > margin
        return (part - margin * fraction) * exceeds


def _in_single_precision(shard: ScoreShard) -> ScoreShard:
    """Converts half precision to single: differences of probabilities vanish in it."""
    return replace(shard, rows=_single(shard.rows), columns=_single(shard.columns))


def _single(scores: Scores) -> Scores:
    if scores.values.dtype in (torch.float16, torch.bfloat16):
        return replace(scores, values=scores.values.float())
    return scores
