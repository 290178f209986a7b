"""Groups of items, for means over groups of the mean within each.

In: the group of each item. Out: the weight of each, and means.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ItemGroups:
    """The group of each of n items, and the weight of each group.

    Attributes:
        members: The group of each item, by number; -1 leaves the item out.
        weights: Weight of each group by its number, up to a factor; None gives all groups that
            have items the same weight.
    """

    members: Int[Tensor, "n"]
    weights: Float[Tensor, "g"] | None = None

    def present_weights(self) -> Float[Tensor, "p"]:
        """Weights of the p groups that have items, in the order of their numbers."""
        has_group = self.members >= 0
        numbers = self.members[has_group].unique()
        if self.weights is None:
            return torch.ones(len(numbers), dtype=torch.float64)
        return self.weights.double()[numbers]

    def item_weights(self) -> Float[Tensor, "n"]:
        """The weight of each item: a mean with these is `sum_g W_g ybar_g / sum_g W_g` over groups.

        Example:
            >>> ItemGroups(torch.tensor([0, 0, 1, -1])).item_weights().tolist()
            [0.25, 0.25, 0.5, 0.0]
        """
        counted = self.members >= 0
        members = self.members[counted]
        weights = self.present_weights()
        # The members stand in for values: their positions and numbers are wanted, not their means.
        _, member, sizes = group_means(members.double(), members)
        weight = weights / weights.sum() / sizes
        item_weights = torch.zeros(len(self.members), dtype=torch.float64)
        item_weights[counted] = weight[member]
        return item_weights


def group_means(
    values: Float[Tensor, "n"], groups: Int[Tensor, "n"]
) -> tuple[Float[Tensor, "p"], Int[Tensor, "n"], Int[Tensor, "p"]]:
    """The mean within each of the p groups that have items.

    Returns:
        The means in the order of the groups' numbers, the position of each item's group among
        them, and the number of items in each group.

    Example:
        >>> group_means(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([5, 5, 2]))[0].tolist()
        [1.0, 0.5]
    """
    _, member, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(sizes), dtype=torch.float64)
    totals = zeros.index_add(0, member, values.double())
    return totals / sizes, member, sizes
