"""Pearson's correlation of paired numbers, and its significance.

In: two numbers of each of n models. Out: the coefficient and its p value. Never: a claim of cause.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation

from vlmtune.errors import UserError


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

    Source: Student 1908; the distribution as in Abramowitz and Stegun, 26.7.3 and 26.7.4.

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
    return Correlation(r, _two_sided(abs(r), n - 2) if n > 2 else None, n)


def _two_sided(r: float, freedom: int) -> float:
    """The probability of a larger coefficient by chance.

    With t / sqrt(freedom) = tan(a), sin(a) is r and cos(a)^2 is 1 - r^2.
    """
    square = max(0.0, 1.0 - r * r)
    if freedom % 2 == 0:
        term = total = 1.0
        for k in range(1, freedom // 2):
            term *= square * (2 * k - 1) / (2 * k)
            total += term
        return max(0.0, 1.0 - r * total)
    term = total = math.sqrt(square) if freedom > 1 else 0.0
    for k in range(1, (freedom - 1) // 2):
        term *= square * (2 * k) / (2 * k + 1)
        total += term
    return max(0.0, 1.0 - 2.0 / math.pi * (math.asin(r) + r * total))
