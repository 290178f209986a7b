"""Word embeddings whose differences count alike, whether the frozen model made them large or small.

In: word embeddings of texts. Out: the same, whitened over the vocabulary. Never: trained weights.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.adapters.towers import text_tower
from vlmtune.backbones.base import Backbone
from vlmtune.types import Tokens

_SHRINKAGE = 0.05


class WhitenedWords(nn.Module):
    r"""$s \, (x - m) \, (C + \epsilon \bar\lambda 1)^{-1/2}$ of word embeddings x.

    m and C are the mean and the covariance of the embeddings of the vocabulary, $\bar\lambda$ is
    the mean eigenvalue of C, and $\epsilon$ = 0.05 bounds what is amplified. The factor s keeps the
    root mean square length of the embeddings.

    Contrastive training embeds words alike that it need not tell apart. An adapter learns late to
    tell them apart, or never: in the small CLIP "cube" and "cylinder" have a cosine of 0.96, and
    0.40 after whitening.

    Source: ours; whitening with shrinkage is standard (Kessy et al. 2018, ZCA; Ledoit and Wolf
    2004).
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        with torch.no_grad():
            words = text_tower(backbone).embedding.weight.float()
            mean, matrix = whitening(words)
        # Computed again from the backbone wherever the adapter is loaded.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, text: Tokens) -> Tokens:
        """The text with whitened embeddings of its words."""
        values = (text.values - self.mean) @ self.matrix
        return replace(text, values=values)


def whitening(
    words: Float[Tensor, "n w"],
) -> tuple[Float[Tensor, "w"], Float[Tensor, "w w"]]:
    """The mean of rows, and the matrix that whitens their differences from it.

    Example:
        >>> rows = torch.tensor([[9.0, 0.0], [-9.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> mean, matrix = whitening(rows)
        >>> (rows @ matrix).round(decimals=1)
        tensor([[ 7.1000,  0.0000],
                [-7.1000,  0.0000],
                [ 0.0000,  5.8000],
                [ 0.0000, -5.8000]])
    """
    mean = words.mean(dim=0)
    # Without a centred copy: multilingual vocabularies take a gigabyte.
    products = (words.T @ words).double() / len(words)
    centre = mean.double()
    covariance = products - torch.outer(centre, centre)
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    eigenvalues = eigenvalues.clamp(min=0)
    shrunk = eigenvalues + _SHRINKAGE * eigenvalues.mean()
    matrix = (vectors / shrunk.sqrt()) @ vectors.T
    # The mean squares of the lengths before and after are sums of eigenvalues.
    factor = (eigenvalues.sum() / (eigenvalues / shrunk).sum()).sqrt()
    return mean, (factor * matrix).to(words.dtype)
