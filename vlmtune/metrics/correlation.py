"""Pearson's correlation of paired numbers, and its significance.

In: two numbers of each of n models. Out: the coefficient and its p value. Never: a claim of cause.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation

from vlmtune.errors import UserError
from vlmtune.metrics.student import two_sided_p


@dataclass(frozen=True)
class Correlation:
    """A coefficient over n pairs of numbers.

    Attributes:
        r: From -1 to 1; None where one of the two numbers never changes.
        p: Two-sided, that of no correlation; None with `r`, and for two pairs.
        n: The number of pairs.
    """

    r: float | None
    p: float | None
    n: int


def pearson(first: Sequence[float], second: Sequence[float]) -> Correlation:
    r"""Pearson's r: the covariance of two numbers over the product of their standard deviations.

    $r = \sum_i a_i b_i / \sqrt{\sum_i a_i^2 \sum_i b_i^2}$ with $a_i = x_i - \bar x$, $b_i$ alike

    The p value is that of $t = r \sqrt{(n - 2) / (1 - r^2)}$ with n - 2 degrees of freedom. It is
    exact if the pairs are drawn independently from a normal distribution. Models of one family are
    not independent, so it is then too small.

    Source: Student 1908.

    Args:
        first: A number of each model.
        second: The other number of each model.

    Raises:
        UserError: There are fewer than two pairs, or the lengths differ.

    Example:
        >>> found = pearson([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0])
        >>> round(found.r, 3), round(found.p, 3), found.n
        (0.8, 0.2, 4)
    """
    n = len(first)
    if n < 2 or n != len(second):
        raise UserError(
            f"expected two numbers of each of two models or more, got {n} and {len(second)}: "
            "give a number of each"
        )
    try:
        r = max(-1.0, min(1.0, correlation(first, second)))
    except StatisticsError:  # a number that never changes
        return Correlation(None, None, n)
    p = _p_value(r, n - 2) if n > 2 else None
    return Correlation(r, p, n)


def _p_value(r: float, freedom: int) -> float:
    if abs(r) == 1:
        return 0.0
    return two_sided_p(r * math.sqrt(freedom / (1 - r * r)), freedom)
