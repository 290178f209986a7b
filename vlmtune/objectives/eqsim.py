"""EqSim: scores that change as much as the meaning does, of close and of distant true pairs."""

from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, ShardedObjective
from vlmtune.objectives.close_partners import partners
from vlmtune.objectives.equivariance import By, Hinge, Side, v1_deviation, v2_deviation
from vlmtune.objectives.functional import embedded_of
from vlmtune.objectives.true_pairs import Normalise, TruePairs
from vlmtune.types import Scores, ScoreShard, Targets

V1 = Literal["distant", "all", "none"]
V2 = Literal["close", "all", "none"]
Close = Literal["topk", "draw", "groups", "both"]
RankedBy = Literal["scores", "reference"]
Count = Literal["once", "each"]
Over = Literal["pairs", "square", "images"]
Temperature = Literal["learned", "detached"]
CHOICES = {
    "v1": V1,
    "v2": V2,
    "close": Close,
    "by": By,
    "ranked_by": RankedBy,
    "side": Side,
    "normalise": Normalise,
    "hinge": Hinge,
    "count": Count,
    "v1_over": Over,
}


class EqSim(ShardedObjective):
    r"""Asks two true pairs (image 1, text 1), (image 2, text 2) for equivariant scores.

    v1, for distant pairs: $[(s_{12} - s_{21})^2 - \alpha_1]_+$. v2, for close pairs:
    $[(s_{11} - s_{12} - s_{22} + s_{21})^2 - \alpha_2]_+$ for a change of text, and
    $[(s_{11} - s_{21} - s_{22} + s_{12})^2 - \alpha_2]_+$ for a change of image. Their sum, times
    `weight`, is added to a retrieval loss such as InfoNCE: alone it is 0 where all scores are
    equal.

    Source: Wang et al. 2023 (EqBen), section 3, eq. 5 and 6; the values in appendix C. The
    defaults are the paper's, `EqSim.released()` has those of the authors' code for FIBER; what the
    paper leaves open, and where the code differs, is said there.

    True pairs are those within groups. All captions of an image make pairs; a pair of pairs is
    weighted with one over the captions of either image, so that each image counts as one: the loss
    is what drawing one caption an image gives on average. Two pairs are compared where all four
    scores were computed and neither text is true of the other's image, so another caption of an
    image, or of a scene it is also true of, is never close or distant to it. Texts without an image
    and images without a text only widen the softmax.

    Args:
        weight: The $\beta$ of the paper, in {0.2, 0.5, 1.0} there.
        v1: Pairs of true pairs that v1 is of: "distant" ones (section 3), "all" (section 5.4), or
            "none".
        v2: Those that v2 is of: "close" ones, "all" or "none" (the ablations of table 6).
        close: What makes partners close: "topk" scores, a "draw" in proportion to their softmax
            (released code), "groups" (minimally different scenes of one record), or "both" of
            topk and groups.
        by: Where partners come from: the "row" (texts for the image), the "column" (images for the
            text), or the "union" of both lists.
        k: How many partners each of the lists has at most.
        ranked_by: What is compared to find partners: "scores", before normalisation, or the
            "reference", scores of the frozen backbone (the cached scores of METER, appendix C).
        side: The "text" or "image" side of v2, or the sum of "both".
        normalise: What s is: the score itself ("none"), its "sigmoid" (an image-text-matching
            logit), "minmax" of the batch to [0, 1], or a softmax over a "row" (texts of an image),
            a "column" (images of a text) or the mean of "both".
        temperature: "learned" takes the scores as the adapter scales them, gradient included;
            "detached" keeps the gradient from the scale; a number divides cosines instead, so
            that `normalise="none"` with 1.0 makes s the cosine.
        alpha1: Margin of v1, >= 0.
        alpha2: Margin of v2, >= 0.
        hinge: Margins are taken off each "pair" (the formula), or off the "mean" (released code).
        count: A pair that is close in both directions or listed twice counts "once", or "each"
            listing counts (released code).
        v1_over: What the sum of v1 is divided by: its own "pairs", the "square" of the number of
            images (released code), or the number of "images" (CyCLIP).

    Raises:
        UserError: A value is out of range, or a number is given for `temperature` or "detached"
            while the adapter gives no cosines.

    Example:
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> scores = Scores.full(torch.tensor([[0.9, 0.5], [0.3, 0.8]]))
        >>> EqSim(v1="all", v2="none", normalise="none", alpha1=0.0)(scores, Targets(eye, eye, eye))
        tensor(0.0400)
    """

    regulariser: ClassVar[bool] = True

    def __init__(
        self,
        weight: float = 0.5,
        v1: V1 = "distant",
        v2: V2 = "close",
        close: Close = "topk",
        by: By = "union",
        k: int = 8,
        ranked_by: RankedBy = "scores",
        side: Side = "both",
        normalise: Normalise = "row",
        temperature: Temperature | float = "learned",
        alpha1: float = 0.04,
        alpha2: float = 0.04,
        hinge: Hinge = "pair",
        count: Count = "once",
        v1_over: Over = "pairs",
    ) -> None:
        super().__init__(weight)
        self.v1, self.v2, self.close, self.k = v1, v2, close, k
        self.by: By = by
        self.ranked_by, self.side = ranked_by, side
        self.normalise: Normalise = normalise
        self.temperature, self.alpha1, self.alpha2 = temperature, alpha1, alpha2
        self.hinge, self.count, self.v1_over = hinge, count, v1_over
        self._check()
        needs: set[Need] = set() if temperature == "learned" else {"embedded"}
        if ranked_by == "reference":
            needs.add("reference")
        # Of the instance: what is read depends on the options.
        self.needs = frozenset(needs)  # pyright: ignore[reportAttributeAccessIssue]

    def _check(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise UserError(
                    f"expected one of {', '.join(get_args(choices))} for {name}, got {value!r}: "
                    "correct the objective"
                )
        if self.v1 == self.v2 == "none":
            raise UserError("expected v1 or v2 of some pairs, got none of both: set one")
        if self.k < 1 or not (self.alpha1 >= 0 and self.alpha2 >= 0):
            raise UserError(
                f"expected k >= 1 and margins >= 0, got k={self.k}, alpha1={self.alpha1}, "
                f"alpha2={self.alpha2}: correct the objective"
            )
        given = self.temperature
        right = given in get_args(Temperature) if isinstance(given, str) else given > 0
        if not right:
            raise UserError(
                f"expected learned, detached or a number > 0 for temperature, got {given!r}: "
                "correct the objective"
            )

    @classmethod
    def paper(cls, v1: V1 = "distant", **changes: Any) -> "EqSim":
        r"""EqSim as the paper describes it; these are the defaults too.

        Stated, in section 3 and appendix C:

        - v1 and v2 as in eq. 6, squared, with a hinge for each pair (`hinge="pair"`);
        - v2 where the "images and text" have the top k = 8 scores (`close="topk"`), v1 elsewhere;
        - s is a cosine under a softmax (FIBER), or the matching score under a sigmoid (METER:
          `normalise="sigmoid"`, `ranked_by="reference"` for its cached scores);
        - one $\alpha$ of {0, 0.04, 0.1} and one $\beta$ of {0.2, 0.5, 1.0}.

        Left open, and chosen here:

        - the values of each table: the middle ones, $\alpha = 0.04$ and $\beta = 0.5$;
        - axis and temperature of the softmax: the texts of an image and the learned one, which the
          code has (`normalise="row"`);
        - what the top 8 are of: the texts of each image and the images of each text
          (`by="union"`), a pair that is in both lists once (`count="once"`);
        - reductions: either loss is the mean over its own pairs, the sides of v2 are added up;
        - $s_{11} > s_{12}$ and $s_{22} > s_{21}$, from which eq. 5 concludes C = 1: left to the
          retrieval loss.

        Args:
            v1: Section 3 and figure 4 apply v1 to "distant" pairs; section 5.4 says that the
                EqSim of the tables is v1 on "all".
            changes: Arguments that are to differ.

        Example:
            >>> EqSim.paper().spec() == EqSim().spec()
            True
        """
        return cls(v1=v1, **changes)

    @classmethod
    def released(cls, **changes: Any) -> "EqSim":
        r"""EqSim as the authors' code for FIBER runs it, by its published command.

        Where it differs from the paper:

        - `close="draw"`, k = 4: four images for each text and four texts for each image are drawn
          without replacement in proportion to their softmax (paper: the top 8);
        - `count="each"`: a partner drawn in both directions counts twice, and a pair that each of
          the two draws counts for both;
        - `hinge="mean"`: margins come off the mean of the batch (off each pair), of each side of v2
          by itself;
        - `alpha1=0.0`, `alpha2=0.1`: two margins, that of v1 never set (one margin);
        - `v1="distant"`: what is not close, as section 3 has it; section 5.4 says all;
        - `v1_over="square"`: the sum of v1 is divided by the square of the batch, close pairs and
          the diagonal being zeros in it (unstated);
        - the softmax is over the texts of an image only, its temperature learned and not detached
          (unstated); the draw of images is from the softmax over images.

        Of the same code, and not repeated here: each rank takes v2 of its own images and leaves
        out of v1 only what is close to these; no gradient crosses ranks, so that it shrinks with
        their number; other captions of an image are negatives, drawn ones too. Here the ranks have
        the loss of one process, and truth is known across the batch.

        Beside the loss: there it is added to the contrastive loss and to the matching loss of hard
        negatives, while the paper names one retrieval loss; it sees 64 pairs at a time, although
        16 steps of them are accumulated; images are flipped under captions that say left or right;
        and the checkpoint is chosen on the test split of Flickr30K, validation being trained on.
        Its example evaluates the matching head, not the scores that EqSim is of. It has two forms
        of v1-all, CyCLIP's and this one; which of each the tables have is unstated.

        Args:
            changes: Arguments that are to differ.

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
        return cls(**{**values, **changes})

    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns the terms of the rank's own true pairs; 0 where nothing can be compared."""
        shard = self._tempered(shard)
        pairs = TruePairs(shard, group)
        near, times = pairs.valid, pairs.valid.to(pairs.weight.dtype)
        if self.v1 == "distant" or self.v2 == "close":
            near, times = self._close(pairs, shard)
        quad = pairs.quad(shard.rows.values, shard.columns.values, self.normalise)
        part = pairs.own_weight.sum() / pairs.weight.sum().clamp_min(1)
        weight = pairs.own_weight[:, None] * pairs.weight[None, :]
        # deviation, weight, divisor, margin
        terms: list[tuple[Tensor, Tensor, Tensor, float]] = []
        if self.v1 != "none":
            among = weight * (pairs.valid if self.v1 == "all" else pairs.valid & ~near)
            over = self._v1_divisor(among, pairs, group)
            terms.append((v1_deviation(quad.s12, quad.s21), among, over, self.alpha1))
        if self.v2 != "none":
            among = weight * (pairs.valid if self.v2 == "all" else times)
            over = group.sum(among.sum())
            for name, deviation in zip(("text", "image"), v2_deviation(*quad), strict=True):
                if self.side in (name, "both"):
                    terms.append((deviation, among, over, self.alpha2))
        return torch.stack([self._hinged(*term, part, group) for term in terms]).sum()

    def diagnose(self, scores: Scores, targets: Targets) -> dict[str, float]:
        """Returns how far close and distant pairs are from equivariance, margins aside.

        Values are means of the deviation from v2, both sides summed (section 5.4: the smaller the
        better), under the keys `close` and `distant`; a kind without pairs is left out.
        """
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            shard = self._tempered(ScoreShard(scores, targets, scores, targets))
            pairs = TruePairs(shard, ProcessGroup(alone=True))
            near, _ = self._close(pairs, shard)
            quad = pairs.quad(shard.rows.values, shard.columns.values, self.normalise)
            text, image = v2_deviation(*quad)
            weight = pairs.own_weight[:, None] * pairs.weight[None, :] * pairs.valid
            kinds = {"close": weight * near, "distant": weight * ~near}
        return {
            name: float(((text + image) * among).sum() / among.sum())
            for name, among in kinds.items()
            if among.any()
        }

    def _tempered(self, shard: ScoreShard) -> ScoreShard:
        """The share with scores in single precision at least, at the temperature asked for."""
        factor: Tensor | float = 1.0
        if self.temperature != "learned":
            given = self.temperature
            scale = embedded_of(shard.rows, f"EqSim with temperature {given}").scale
            factor = (scale.detach() if isinstance(given, str) else 1 / given) / scale
        rows, columns = (
            replace(scores, values=_single(scores.values) * factor)
            for scores in (shard.rows, shard.columns)
        )
        return replace(shard, rows=rows, columns=columns)

    def _close(
        self, pairs: TruePairs, shard: ScoreShard
    ) -> tuple[Bool[Tensor, "a A"], Float[Tensor, "a A"]]:
        """Whether two pairs are close, and how often that counts for the own one."""
        listed = torch.zeros_like(pairs.valid[:, :0], dtype=torch.int64)
        if self.close != "groups":
            rows, columns = self._ranked(shard)
            listed = partners(pairs, rows, columns, self.k, self.by, self.close == "draw")
        mine, theirs = pairs.listings(listed)
        if self.close in ("groups", "both"):
            grouped = (pairs.grouped & pairs.valid).to(mine.dtype)
            mine, theirs = mine.maximum(grouped), theirs.maximum(grouped)
        near = mine + theirs > 0
        return near, (near if self.count == "once" else mine).to(pairs.weight.dtype)

    def _ranked(self, shard: ScoreShard) -> tuple[Tensor, Tensor]:
        """The rows and columns in which partners are looked for."""
        if self.ranked_by == "scores":
            return shard.rows.values, shard.columns.values
        rows, columns = shard.rows.reference, shard.columns.reference
        if rows is None or columns is None:
            raise UserError(
                "expected scores of the frozen backbone for ranked_by reference of EqSim, got "
                "none: set it to scores"
            )
        return rows, columns

    def _v1_divisor(
        self, weight: Float[Tensor, "a A"], pairs: TruePairs, group: ProcessGroup
    ) -> Float[Tensor, ""]:
        if self.v1_over == "pairs":
            return group.sum(weight.sum())
        images = pairs.weight.sum()
        return images if self.v1_over == "images" else images.square()

    def _hinged(
        self,
        deviation: Float[Tensor, "a A"],
        weight: Float[Tensor, "a A"],
        over: Float[Tensor, ""],
        margin: float,
        part: Float[Tensor, ""],
        group: ProcessGroup,
    ) -> Float[Tensor, ""]:
        """The rank's part of what exceeds the margin; `part` is its part of all true pairs."""
        over = torch.where(over > 0, over, 1.0)
        if self.hinge == "pair":
            return ((deviation - margin).relu() * weight).sum() / over
        mine = (deviation * weight).sum() / over
        exceeds = group.sum(mine.detach()) > margin
        return (mine - margin * part) * exceeds


def _single(values: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Half precision made single: differences of probabilities vanish in it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
