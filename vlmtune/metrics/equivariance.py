r"""Equivariance of embeddings: the same change of a factor should change them alike.

In: embeddings before and after a change. Out: cosines of their differences, and the mean with its
interval.

For a change of a factor from one value to another, sample i (an object with all its other factors)
has the difference vector $\delta_i = f(i, b') - f(i, b)$ of its normalised embeddings. Equivariance
is the mean cosine of difference vectors of the same change: of two samples (image or text
equivariance), or of the image and the caption of one sample (across modalities). It is 1 if the
change is the same vector for all samples, and 0 on average if the vectors have nothing in common.
A difference of zero length has no direction: its cosines count as 0.
Source: Bordes et al. 2023, PUG, section 3.2, equations 1 and 2, and appendix C.1.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

Differences = Float[Tensor, "n d"]
"""The difference vector of each of n samples."""


def alignment(differences: Differences) -> Float[Tensor, "n"]:
    r"""The mean cosine of each of n difference vectors with all other vectors.

    With $u_i = \delta_i / |\delta_i|$: $(u_i \cdot \sum_j u_j - u_i \cdot u_i) / (n - 1)$. The mean
    over i is the mean cosine over all pairs, without forming them.

    Example:
        >>> alignment(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])).tolist()
        [0.5, 0.5, 0.0]
    """
    units = _units(differences)
    # The sum over all others at once: n cosines of n vectors each would be a matrix n x n.
    with_all = units @ units.sum(dim=0)
    with_itself = (units * units).sum(dim=1)
    return (with_all - with_itself) / (len(units) - 1)


def paired_alignment(differences: Differences, generator: torch.Generator) -> Float[Tensor, "n"]:
    """The cosine of each of n difference vectors with one other vector, chosen at random.

    The vectors are shuffled, and each is paired with the next.

    Example:
        >>> vectors = torch.tensor([[2.0, 0.0], [-1.0, 0.0]])
        >>> paired_alignment(vectors, torch.Generator()).tolist()
        [-1.0, -1.0]
    """
    units = _units(differences)
    order = torch.randperm(len(units), generator=generator)
    # A cycle through the shuffled vectors: none is paired with itself.
    shuffled = units[order]
    following = units[order.roll(-1)]
    cosines = torch.empty(len(units), dtype=units.dtype)
    cosines[order] = (shuffled * following).sum(dim=1)
    return cosines


def agreement(one: Differences, other: Differences) -> Float[Tensor, "n"]:
    """The cosine of each of n difference vectors with its counterpart.

    Example:
        >>> agreement(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 3.0]]))
        tensor([0.7071], dtype=torch.float64)
    """
    one = normalize(one.double(), dim=1)
    other = normalize(other.double(), dim=1)
    return (one * other).sum(dim=1)


def _units(differences: Differences) -> Differences:
    exact = differences.detach().double().cpu()
    return normalize(exact, dim=1)
