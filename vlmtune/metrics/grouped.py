"""Means over groups of the mean within each: which items count, where, and how much."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Which group each of n items counts in, and what each group weighs.

    Attributes:
        members: Number of the group of each item; -1 where it counts in none.
        weights: Weight of each group by its number, up to a factor; None weighs all that have items
            alike.
    """

    members: Int[Tensor, "n"]
    weights: Float[Tensor, "g"] | None = None

    def present(self) -> Float[Tensor, "p"]:
        """Weights of the p groups that have items, in the order of their numbers."""
        numbers = self.members[self.members >= 0].unique()
        if self.weights is None:
            return torch.ones(len(numbers), dtype=torch.float64)
        return self.weights.double()[numbers]

    def shares(self) -> Float[Tensor, "n"]:
        """What each item weighs: `mean` is the mean of the values with these weights.

        Example:
            >>> Groups(torch.tensor([0, 0, 1, -1])).shares().tolist()
            [0.25, 0.25, 0.5, 0.0]
        """
        kept, weights = self.members >= 0, self.present()
        _, member, sizes = group_means(self.members[kept].double(), self.members[kept])
        shares = torch.zeros(len(self.members), dtype=torch.float64)
        shares[kept] = (weights / weights.sum() / sizes)[member]
        return shares

    def mean(self, values: Float[Tensor, "n"]) -> float:
        """The mean over groups of the mean within each, `sum_g W_g ybar_g / sum_g W_g`.

        Example:
            >>> groups = Groups(torch.tensor([0, 0, 1, -1]), torch.tensor([1.0, 3.0]))
            >>> groups.mean(torch.tensor([1.0, 0.0, 1.0, 0.0]))  # (1 * 0.5 + 3 * 1) / 4
            0.875
        """
        kept, weights = self.members >= 0, self.present()
        means, _, _ = group_means(values[kept], self.members[kept])
        # Divided last, so that means of 1 give exactly 1.
        return float((weights * means).sum() / weights.sum())


def group_means(
    values: Float[Tensor, "n"], groups: Int[Tensor, "n"]
) -> tuple[Float[Tensor, "p"], Int[Tensor, "n"], Int[Tensor, "p"]]:
    """The mean within each of the p groups that have items.

    Returns:
        The means in the order of the groups' numbers, for each item the place of its group among
        them, and how many items each group has.

    Example:
        >>> group_means(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([5, 5, 2]))[0].tolist()
        [1.0, 0.5]
    """
    _, member, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    totals = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, member, values.double())
    return totals / sizes, member, sizes
