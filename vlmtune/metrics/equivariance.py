r"""Equivariance of embeddings: do they change alike where one factor changes alike?

For a change of a factor from one value to another, sample i (an object with all its other factors)
has the difference vector $\delta_i = f(i, b') - f(i, b)$ of its normalised embeddings. Equivariance
is the mean cosine of difference vectors of the same change: of two samples (image or text
equivariance), or of the image and the caption of one sample (across modalities). It is 1 where the
change is the same vector for all samples, and 0 on average where the vectors have nothing in
common. A difference of zero length points nowhere: its cosines count as 0.
Source: Bordes et al. 2023, PUG, section 3.2, equations 1 and 2, and appendix C.1.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.errors import UserError
from vlmtune.metrics.intervals import Z95
from vlmtune.metrics.value import MetricValue


def alignment(differences: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    r"""For each of n difference vectors its mean cosine with all the others.

    With $u_i = \delta_i / |\delta_i|$: $(u_i \cdot \sum_j u_j - u_i \cdot u_i) / (n - 1)$. The mean
    over i is the mean cosine over all pairs, without forming them.

    Raises:
        UserError: There are fewer than two vectors.

    Example:
        >>> alignment(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])).tolist()
        [0.5, 0.5, 0.0]
    """
    units = _units(differences)
    return ((units @ units.sum(dim=0)) - (units * units).sum(dim=1)) / (len(units) - 1)


def paired_alignment(
    differences: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "n"]:
    """For each of n difference vectors its cosine with another one, drawn at random.

    Every vector is drawn once: they are shuffled, and each is paired with the next.

    Raises:
        UserError: There are fewer than two vectors.

    Example:
        >>> vectors = torch.tensor([[2.0, 0.0], [-1.0, 0.0]])
        >>> paired_alignment(vectors, torch.Generator()).tolist()
        [-1.0, -1.0]
    """
    units = _units(differences)
    order = torch.randperm(len(units), generator=generator)
    cosines = torch.empty(len(units), dtype=units.dtype)
    cosines[order] = (units[order] * units[order.roll(-1)]).sum(dim=1)
    return cosines


def agreement(one: Float[Tensor, "n d"], other: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Cosine of each of n difference vectors with its counterpart.

    Example:
        >>> agreement(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 3.0]]))
        tensor([0.7071], dtype=torch.float64)
    """
    return (normalize(one.double(), dim=1) * normalize(other.double(), dim=1)).sum(dim=1)


def mean_cosine(
    values: Float[Tensor, "n"], clusters: Int[Tensor, "n"], degree: int = 1
) -> MetricValue:
    r"""The mean of the cosines of n samples, with a 95 % interval over clusters of them.

    The normal interval with the variance of totals over clusters. A mean over pairs varies with
    both of its samples: to first order its deviation is twice that of the mean of each sample's
    own mean (Hoeffding 1948, section 5), so `degree` is 2 there.

    Args:
        values: What each sample contributes, in [-1, 1].
        clusters: Samples of one number are not independent (of one object).
        degree: 1 for a mean over samples, 2 for a mean over pairs of samples.

    Raises:
        UserError: There are no values, or one is not finite.

    Example:
        >>> mean_cosine(torch.tensor([0.25, 0.5]), torch.tensor([0, 1])).value
        0.375
    """
    if not len(values) or not bool(torch.isfinite(values).all()):
        raise UserError(f"expected finite cosines to average, got {len(values)}: check the model")
    values = values.detach().double()
    mean = float(values.mean())
    _, member = clusters.unique(return_inverse=True)
    count = int(member.max()) + 1
    if count < 2:
        return MetricValue(mean, len(values), 0.0, unit="cosine")
    shares = torch.zeros(count, dtype=values.dtype).index_add(0, member, values - mean)
    variance = float((shares**2).sum()) / len(values) ** 2 * count / (count - 1)
    half = Z95 * degree * math.sqrt(variance)
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return MetricValue(mean, len(values), 0.0, low, high, unit="cosine")


def _units(differences: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    if len(differences) < 2:
        raise UserError(
            f"expected at least two samples of one change, got {len(differences)}: "
            "equivariance compares them"
        )
    return normalize(differences.detach().double().cpu(), dim=1)
