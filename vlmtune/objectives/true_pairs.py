"""The true image-text pairs of a batch against each other, from one rank's share of the scores.

A batch holds A true pairs; a of them have their image on this rank. For each of these and each of
all A, the four scores that EqSim compares are found in the rank's rows (its images, all texts) and
columns (all images, its texts): memory is linear in the global batch.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.types import ScoreShard

Normalise = Literal["none", "row", "column", "both", "sigmoid", "minmax"]


class Quad(NamedTuple):
    """The four scores of a own true pairs (1) against all A true pairs (2)."""

    s11: Float[Tensor, "a 1"]
    s12: Float[Tensor, "a A"]
    s21: Float[Tensor, "a A"]
    s22: Float[Tensor, "1 A"]


class TruePairs:
    """The true pairs of a batch: of each image those of its captions that came with it.

    A text that is true of an image but belongs to another group is no pair of that image: it only
    keeps the two from being compared.

    Args:
        share: The rank's scores and targets.
        group: All ranks.

    Attributes:
        start: Position of the first own pair among all A.
        weight: One over the number of pairs of the image, of all A pairs.
        valid: True where own pair and other pair can be compared: all four scores are computed,
            and neither text is true of the other's image. So two captions of one image never are.
        grouped: True where the two pairs belong to one group.
    """

    def __init__(self, shard: ScoreShard, group: ProcessGroup) -> None:
        rows, columns, targets = shard.rows, shard.columns, shard.row_targets
        self.shard, self.group = shard, group
        found = (targets.truth & targets.same_group & rows.computed).nonzero()
        self._row, text = found.unbind(1)
        everything = group.gather(torch.stack([self._row + shard.row_start, text], dim=1))
        self._rows, self._texts = everything.unbind(1)
        self.start = int((self._rows < shard.row_start).sum())
        # Where ranks share a text, it may be a column of another rank than the image's.
        own = columns.values.shape[1]
        here = (text >= shard.column_start) & (text < shard.column_start + own)
        self._strays = group.gather(text[~here]).unique()
        stray = own + torch.searchsorted(self._strays, text)
        self._column = torch.where(here, text - shard.column_start, stray)
        count = torch.bincount(self._rows, minlength=len(columns.values))
        self.weight: Float[Tensor, "A"] = 1 / count[self._rows].to(rows.values.dtype)
        other = shard.column_targets
        computed = self.across(rows.computed) & self.back(rows.computed, columns.computed)
        true = self.across(targets.truth) | self.back(targets.truth, other.truth)
        self.valid: Bool[Tensor, "a A"] = computed & ~true
        self.grouped: Bool[Tensor, "a A"] = self.across(targets.same_group) & self.back(
            targets.same_group, other.same_group
        )

    @property
    def own_weight(self) -> Float[Tensor, "a"]:
        """The weights of own pairs."""
        return self.weight[self.start : self.start + len(self._row)]

    def across(self, rows: Shaped[Tensor, "n M"]) -> Shaped[Tensor, "a A"]:
        """What `rows` holds of own images with the texts of all pairs ($s_{12}$)."""
        return rows[self._row[:, None], self._texts[None, :]]

    def back(
        self, rows: Shaped[Tensor, "n M"], columns: Shaped[Tensor, "N m"]
    ) -> Shaped[Tensor, "a A"]:
        """What the matrix holds of the images of all pairs with the texts of own ($s_{21}$)."""
        return self._widened(rows, columns)[self._rows[None, :], self._column[:, None]]

    def _widened(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The columns of own texts, then those of texts that are other ranks'."""
        if not len(self._strays):
            return columns
        return torch.cat([columns, self.group.gather(rows[:, self._strays])], dim=1)

    def listings(
        self, listed: Int[Tensor, "a listed"]
    ) -> tuple[Int[Tensor, "a A"], Int[Tensor, "a A"]]:
        """How often own pairs list each of all pairs, and how often each of those lists the own.

        Args:
            listed: Positions among all A pairs for each own pair, -1 for none.
        """
        own, everyone = self.valid.shape
        # One place more takes what is none, or none of this rank.
        mine = listed.new_zeros(own, everyone + 1)
        mine.scatter_add_(1, listed % (everyone + 1), torch.ones_like(listed))
        of_all = self.group.gather(listed) - self.start
        of_all = of_all.where((of_all >= 0) & (of_all < own), own)
        who = torch.arange(everyone, device=listed.device)[:, None].expand_as(of_all)
        theirs = listed.new_zeros(own + 1, everyone)
        theirs.index_put_((of_all, who), torch.ones_like(of_all), accumulate=True)
        return mine[:, :everyone], theirs[:own]

    def quad(
        self,
        rows: Float[Tensor, "n M"],
        columns: Float[Tensor, "N m"],
        normalise: Normalise,
    ) -> Quad:
        """Returns the four scores, normalised; 0 where the pairs cannot be compared.

        Args:
            rows: Scores of own images with all texts.
            columns: Scores of all images with own texts.
            normalise: "none", "sigmoid", "minmax" (the computed scores of the batch to [0, 1]), or
                a softmax, of a "row" (over texts), a "column" (over images) or the mean of "both".
                The softmax of a true pair is over itself and what is false of its image (text):
                other captions of the image leave the denominator.
        """
        if normalise == "minmax":
            low, width = self._extent(rows)
            rows, columns = (rows - low) / width, (columns - low) / width
        wide = self._widened(rows, columns)
        own = rows[self._row, self._texts[self.start : self.start + len(self._row)]]
        s12, s21 = self.across(rows), wide[self._rows[None, :], self._column[:, None]]
        parts = []
        if normalise in ("row", "both"):
            parts.append(self._softmax(own, s12, s21, self._row_total(own, rows), by_row=True))
        if normalise in ("column", "both"):
            parts.append(self._softmax(own, s12, s21, self._column_total(own, wide), by_row=False))
        if normalise == "sigmoid":
            own, s12, s21 = own.sigmoid(), s12.sigmoid(), s21.sigmoid()
        if parts:
            own, s12, s21 = (torch.stack(same).mean(dim=0) for same in zip(*parts, strict=True))
        zero = s12.new_zeros(())
        return Quad(
            own[:, None],
            torch.where(self.valid, s12, zero),
            torch.where(self.valid, s21, zero),
            self.group.gather(own)[None, :],
        )

    def _row_total(self, own: Tensor, rows: Tensor) -> Tensor:
        """Log of the denominator of own pairs, over texts."""
        false = self.shard.rows.computed & ~self.shard.row_targets.truth
        return torch.logaddexp(own, _log_sum(rows, false, dim=1)[self._row])

    def _column_total(self, own: Tensor, wide: Tensor) -> Tensor:
        """Log of the denominator of own pairs, over images."""
        shard = self.shard
        computed = self._widened(shard.rows.computed, shard.columns.computed)
        true = self._widened(shard.row_targets.truth, shard.column_targets.truth)
        return torch.logaddexp(own, _log_sum(wide, computed & ~true, dim=0)[self._column])

    def _softmax(
        self, own: Tensor, s12: Tensor, s21: Tensor, total: Tensor, by_row: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        mine, others = total[:, None], self.group.gather(total)[None, :]
        of12, of21 = (mine, others) if by_row else (others, mine)
        # Emptied before the exponential, which may overflow where pairs cannot be compared.
        s12 = (s12 - of12).masked_fill(~self.valid, 0.0).exp()
        s21 = (s21 - of21).masked_fill(~self.valid, 0.0).exp()
        return (own - total).exp(), s12, s21

    def _extent(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest computed score of all ranks, and how far the highest lies above it."""
        scores = rows[self.shard.rows.computed]
        none = rows.sum() * 0  # a rank without scores takes part all the same
        low = scores.min() if len(scores) else none + torch.inf
        high = scores.max() if len(scores) else none - torch.inf
        low = self.group.gather(low[None]).min()
        width = self.group.gather(high[None]).max() - low
        known = width.isfinite() & (width > 0)
        return low, torch.where(known, width, 1.0)


def _log_sum(scores: Tensor, among: Tensor, dim: int) -> Tensor:
    # Finite rather than -inf: a row without false texts must not put NaN into the gradient.
    return scores.masked_fill(~among, torch.finfo(scores.dtype).min).logsumexp(dim=dim)
