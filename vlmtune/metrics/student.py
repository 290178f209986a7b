"""Student's t distribution: how far an estimate strays if its variance is estimated, too.

In: degrees of freedom. Out: the 97.5 % point, or a p value.
"""

from scipy.special import stdtr, stdtridf, stdtrit


def t_quantile(freedom: float | int) -> float:
    """The 97.5 % point: a 95 % interval is an estimate and so many standard errors on either side.

    Source: Student 1908.

    Example:
        >>> round(t_quantile(9), 3), round(t_quantile(1e9), 3)
        (2.262, 1.96)
    """
    return float(stdtrit(freedom, 0.975))


def freedom_of(quantile: float) -> float:
    """The degrees of freedom with that 97.5 % point, the inverse of `t_quantile`.

    Example:
        >>> round(freedom_of(t_quantile(9)), 6)
        9.0
    """
    return float(stdtridf(0.975, quantile))


def two_sided_p(t: float, freedom: float | int) -> float:
    """The probability of a value at least as far from 0 as t.

    Example:
        >>> round(two_sided_p(-2.262, 9), 3), two_sided_p(0.0, 9)
        (0.05, 1.0)
    """
    return float(2 * stdtr(freedom, -abs(t)))  # both tails of a symmetric distribution
