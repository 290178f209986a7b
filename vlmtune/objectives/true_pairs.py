"""The true image-text pairs of a batch against each other, from one rank's shard of the scores.

In: a `ScoreShard`. Out: the four scores that EqSim compares, and the close partners of each pair.
Never: the N x M scores on one rank; memory is linear in the global batch.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.functional import count_of, gather_pairs, only
from vlmtune.types import ScoreShard, positions, send

Normalise = Literal["none", "row", "sigmoid"]
By = Literal["row", "union"]
PairMatrix = Float[Tensor, "a A"]
"""A row for each local pair, a column for each pair of all ranks."""


class FourScores(NamedTuple):
    """The four scores of a local true pairs (1) with all A true pairs (2)."""

    s11: Float[Tensor, "a 1"]
    s12: PairMatrix
    s21: PairMatrix
    s22: Float[Tensor, "1 A"]


class TruePairs:
    """The A true pairs of a batch: each image with each of its captions from its group.

    a of them are local: their image is on this rank. A matrix over pairs has a row for each local
    pair (1) and a column for each pair (2). $s_{12}$ is the score of image 1 with text 2.

    A text of another group that is true of an image makes no pair; it only keeps the two from being
    compared. Two pairs are comparable if all four scores are computed and neither text is true of
    the other's image. So two captions of one image are never compared.

    Attributes:
        start: Position of the first local pair among all A.
        weight: One over the number of pairs of the image, for all A pairs.
        comparable: True where two pairs are comparable.

    Example:
        Three images, of which the first has two captions: four pairs, (0, 0), (0, 1), (1, 2) and
        (2, 3). The two pairs of image 0 are not compared with each other.

        >>> from vlmtune.distributed.process_group import ProcessGroup
        >>> from vlmtune.types import Scores, Targets
        >>> truth = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) > 0
        >>> scores = Scores.full(torch.tensor([[9., 8, 1, 2], [3, 4, 9, 5], [6, 7, 0, 9]]))
        >>> targets = Targets(truth, truth, truth)
        >>> pairs = TruePairs(ScoreShard(scores, targets, scores, targets), ProcessGroup())
        >>> pairs.weight
        tensor([0.5000, 0.5000, 1.0000, 1.0000])
        >>> pairs.comparable.int().tolist()
        [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
        >>> pairs.s12(scores.values)[0]  # image 0 with the text of each pair
        tensor([9., 8., 1., 2.])
        >>> pairs.s21(scores.values, scores.values)[0]  # the image of each pair with text 0
        tensor([9., 9., 3., 6.])
    """

    def __init__(self, shard: ScoreShard, group: ProcessGroup) -> None:
        rows = shard.rows
        columns = shard.columns
        targets = shard.row_targets
        self.shard = shard
        self.group = group
        known = targets.on_cpu()
        true = positions(known.truth, "cpu")
        usable = known.same_group[true] & rows.cpu_computed[true]
        pairs = torch.stack(true)[:, usable]
        self._row, text = send(pairs, rows.values.device)
        self._images, self._texts = gather_pairs(self._row, text, shard, group)
        self.start = 0
        # A text may be on several ranks: then its column may lie on another rank than the image.
        # Such columns are gathered, and stand behind the rank's own.
        width = columns.values.shape[1]
        column = text - shard.column_start
        self._remote_texts = text[:0]
        if group.size > 1:
            self.start = int((self._images < shard.row_start).sum())
            here = (column >= 0) & (column < width)
            remote_texts = group.gather(text[~here])
            self._remote_texts = remote_texts.unique()
            remote = width + torch.searchsorted(self._remote_texts, text)
            column = torch.where(here, column, remote)
        self._column = column
        # An image counts as one, however many captions it has.
        captions = count_of(self._images, len(columns.values))
        captions_of_pair = captions[self._images].to(rows.values.dtype)
        self.weight: Float[Tensor, "A"] = 1 / captions_of_pair
        self.comparable = self._comparable()

    def _comparable(self) -> Bool[Tensor, "a A"]:
        """Where all four scores are there, and neither text is true of the other's image."""
        rows = self.shard.rows
        columns = self.shard.columns
        computed12 = self.s12(rows.computed)
        computed21 = self.s21(rows.computed, columns.computed)
        truth = self.shard.row_targets.truth
        true12 = self.s12(truth)
        true21 = self.s21(truth, self.shard.column_targets.truth)
        related = true12 | true21
        return computed12 & computed21 & ~related

    @property
    def local(self) -> slice:
        """Positions of the local pairs among all A."""
        return slice(self.start, self.start + len(self._row))

    def s12(self, rows: Shaped[Tensor, "n M"]) -> Shaped[Tensor, "a A"]:
        """Entries (image 1, text 2) of a matrix of which this rank has `rows`."""
        # Not by a grid of positions: its gradient would sort them all.
        return rows.index_select(0, self._row).index_select(1, self._texts)

    def s21(
        self, rows: Shaped[Tensor, "n M"], columns: Shaped[Tensor, "N m"]
    ) -> Shaped[Tensor, "a A"]:
        """Entries (image 2, text 1) of a matrix of which this rank has `rows` and `columns`."""
        if len(self._remote_texts):
            # Every rank has the scores of its own images with such texts.
            remote = self.group.gather(rows[:, self._remote_texts])
            columns = torch.cat([columns, remote], dim=1)
        by_image = columns.index_select(0, self._images).index_select(1, self._column)
        return by_image.T.contiguous()

    def _where_comparable(self, values: PairMatrix) -> PairMatrix:
        """The values of comparable pairs, elsewhere 0: others may overflow in an exponential."""
        return values.masked_fill(~self.comparable, 0.0)

    def count_listings(
        self, listed: Int[Tensor, "a listed"]
    ) -> tuple[Int[Tensor, "a A"], Int[Tensor, "a A"]]:
        """How often pair 1 lists pair 2, and how often pair 2 lists pair 1.

        `listed` has positions among all A pairs for each local pair, -1 for none.
        """
        local, total = self.comparable.shape
        # One extra column takes entries that list no pair: modulo, -1 is the last column.
        forward = listed.new_zeros(local, total + 1)
        columns = listed % (total + 1)
        forward.scatter_add_(1, columns, torch.ones_like(listed))
        # Other ranks list pairs of this rank, too. One extra row takes the pairs that are not.
        all_listed = self.group.gather(listed)
        all_listed = all_listed - self.start
        inside = (all_listed >= 0) & (all_listed < local)
        all_listed = all_listed.where(inside, local)
        # Which pair of all ranks made each entry of `all_listed`.
        lister = torch.arange(total, device=listed.device)
        lister = lister[:, None].expand_as(all_listed)
        backward = listed.new_zeros(local + 1, total)
        once = torch.ones_like(all_listed)
        backward.index_put_((all_listed, lister), once, accumulate=True)
        return forward[:, :total], backward[:local]

    def four_scores(
        self, rows: Float[Tensor, "n M"], columns: Float[Tensor, "N m"], normalise: Normalise
    ) -> FourScores:
        """Returns the four scores, normalised; 0 where the pairs cannot be compared.

        Args:
            rows: Scores of local images with all texts.
            columns: Scores of all images with local texts.
            normalise: "none", "sigmoid", or "row": a softmax over the texts of an image. The
                denominator of a true pair holds itself and the false texts of its image; other
                captions of the image are left out.
        """
        s11 = rows[self._row, self._texts[self.local]]
        s12 = self.s12(rows)
        s21 = self.s21(rows, columns)
        if normalise == "row":
            # A softmax over the pair itself and the false texts of its image.
            is_false = ~self.shard.row_targets.truth & self.shard.rows.computed
            false = only(rows, is_false).logsumexp(dim=1)
            total = torch.logaddexp(s11, false[self._row])
            # The image of s21 may be on another rank, and so is its denominator.
            totals = self.group.gather(total)
            # In this order: gradients of `total` are added in the order of its uses.
            s11 = (s11 - total).exp()
            s12 = s12 - total[:, None]
            s12 = self._where_comparable(s12).exp()
            s21 = s21 - totals[None, :]
            s21 = self._where_comparable(s21).exp()
        elif normalise == "sigmoid":
            s11 = s11.sigmoid()
            s12 = s12.sigmoid()
            s21 = s21.sigmoid()
        s12 = self._where_comparable(s12)
        s21 = self._where_comparable(s21)
        s22 = self.group.gather(s11)
        return FourScores(s11[:, None], s12, s21, s22[None, :])


def partners(
    pairs: TruePairs,
    rows: Float[Tensor, "n M"],
    columns: Float[Tensor, "N m"],
    k: int,
    by: By,
    draw: bool,
) -> Int[Tensor, "a listed"]:
    """Positions, among all A true pairs, of the close partners of each of the a local pairs.

    Args:
        pairs: The true pairs.
        rows: Scores that rank partners, of local images with all texts.
        columns: The same of all images with local texts.
        k: Partners from each ranking at most; -1 fills the rest.
        by: "row" takes the best texts for the image. "union" adds the best images for the text,
            listed beside the texts, so that a partner may occur twice.
        draw: Sample partners without replacement, in proportion to the softmax of the scores,
            instead of taking the largest. The sample depends on the random state of the first rank
            and on the position of the pair in the batch, not on the number of ranks.
    """
    # Texts that the image ranks high, then images that the text ranks high.
    keys = [pairs.s12(rows)]
    if by == "union":
        keys.append(pairs.s21(rows, columns))
    noise = _noise(pairs) if draw else None
    listed = []
    for direction, key in enumerate(keys):
        if noise is not None:
            key = key.double() + noise[:, direction]
        listed.append(_largest(key, pairs.comparable, k))
    return torch.cat(listed, dim=1)


def _largest(
    keys: PairMatrix, valid: Bool[Tensor, "a A"], k: int
) -> Int[Tensor, "a least_of_k_and_A"]:
    """Positions of the k largest valid keys of each row, the first of equal ones; -1 if fewer."""
    # Ties fall alike on any number of ranks.
    keys = keys.detach().masked_fill(~valid, -torch.inf)
    if keys.dtype == torch.float32:
        # Far faster than to sort all.
        count = min(k, keys.shape[1])
        largest = _distinct(keys).topk(count, dim=1).indices
    else:
        largest = keys.argsort(dim=1, descending=True, stable=True)[:, :k]
    is_valid = valid.gather(1, largest)
    return largest.masked_fill(~is_valid, -1)


def _distinct(keys: PairMatrix) -> Int[Tensor, "a A"]:
    """Whole numbers in the order of the keys; of equal keys of a row the first is the largest."""
    # Sums with 0 are the same for both zeros. The bits of positive floats have the order of the
    # floats, those of negative ones the opposite order.
    bits = (keys + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # Positions change the lower half of 64 bits alone.
    columns = torch.arange(keys.shape[1], device=keys.device)
    return (ordered.long() << 32) - columns


def _noise(pairs: TruePairs) -> Float[Tensor, "a 2 A"]:
    """Gumbel noise for texts and for images: the k largest of scores plus noise are k draws.

    Source: Kool et al. 2019, "Stochastic beams and where to find them", section 3 (Gumbel-top-k).
    """
    device = pairs.comparable.device
    # All ranks take the number of the first rank, so that its random state alone decides.
    number = torch.randint(2**31, (1,)).to(device)
    shared = int(pairs.group.gather(number)[0])
    seed = shared * 1_000_003 + pairs.start
    local, total = pairs.comparable.shape
    # Each pair draws from a seed of its own, so the noise does not depend on the number of ranks.
    noise = torch.empty(local, 2, total, dtype=torch.float64)
    for position, row in enumerate(noise):
        generator = torch.Generator().manual_seed(seed + position)
        row.exponential_(generator=generator)
    # `pairs.base.gumbel` takes the same noise from uniform numbers. Both formulas stay: with the
    # other one a seed would give other draws.
    return -noise.log().to(device)
