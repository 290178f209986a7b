r"""Text-only baselines: scores of captions without their image.

In: captions, and a language model or a scorer. Out: scores that no single image changes.
Never: a look at the image of a pair.

A benchmark on which a baseline does well can be solved by its captions alone. Source: Hsieh et al.
2023 (SugarCrepe), section 3; Lin et al. 2024 (VisualGPTScore), section 3, for the score with the
image averaged out.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.items import sample
from vlmtune.benchmarks.pair_scorer import Pairs, PairScorer, PairScores
from vlmtune.types import ImageRef

if TYPE_CHECKING:  # most evaluations have no language model
    from vlmtune.language.ngram import NGram


class _TextScorer(ABC):
    """A scorer of pairs whose scores depend on their texts alone."""

    def __call__(
        self, images: Sequence[ImageRef], texts: Sequence[str], pairs: Pairs = None
    ) -> PairScores:
        """Scores the P pairs (row of `images`, row of `texts`), or all N x M without `pairs`."""
        scores = self._text_scores(images, texts)
        if pairs is None:
            # A copy: the rows of an expanded tensor share their memory.
            return scores.expand(len(images), -1).clone()
        columns = pairs[:, 1]
        return scores[columns]

    @abstractmethod
    def _text_scores(self, images: Sequence[ImageRef], texts: Sequence[str]) -> Float[Tensor, "M"]:
        """The score of each text."""


class TextOnlyScore(_TextScorer):
    """The likelihood of the caption as text.

    Args:
        model: A model fitted to the captions that the tested model was trained on.
        per_token: The mean log-probability of a word; otherwise the sum, which prefers short
            captions.

    Example:
        >>> from pathlib import Path
        >>> from vlmtune.language.ngram import NGram
        >>> model = NGram(2).fit(["a dog on a sofa", "a cat on a sofa"])
        >>> score = TextOnlyScore(model)
        >>> image = ImageRef(Path("any.png"))
        >>> fluent, odd = score([image], ["a cat on a sofa", "a sofa on a cat"])[0]
        >>> bool(fluent > odd)
        True
    """

    def __init__(self, model: "NGram", per_token: bool = True) -> None:
        self.model = model
        self.per_token = per_token

    @classmethod
    def fitted(cls, captions: Iterable[str]) -> "TextOnlyScore":
        """Returns the score of an n-gram model of these captions."""
        from vlmtune.language.ngram import NGram

        return cls(NGram().fit(captions))

    @override
    def _text_scores(self, images: Sequence[ImageRef], texts: Sequence[str]) -> Float[Tensor, "M"]:
        values = [self.model.log_probability(text, self.per_token) for text in texts]
        return torch.tensor(values, dtype=torch.float64)


class FewestWords(_TextScorer):
    """Minus the number of words of the caption.

    Where false captions are true ones with something added, as in half-truths and SugarCrepe's
    additions, it is right without reading them.

    Example:
        >>> from pathlib import Path
        >>> image = ImageRef(Path("any.png"))
        >>> FewestWords()([image], ["a dog", "a dog and a cat"])
        tensor([[-2., -5.]], dtype=torch.float64)
    """

    @override
    def _text_scores(self, images: Sequence[ImageRef], texts: Sequence[str]) -> Float[Tensor, "M"]:
        counts = [-len(text.split()) for text in texts]
        return torch.tensor(counts, dtype=torch.float64)


class ImageAveraged(_TextScorer):
    r"""A model with the image averaged out: $\bar s_j = \frac{1}{n} \sum_i s_{ij}$.

    The mean is over the images of the benchmark, or over n of them. For a dual model this is its
    score of the mean of the normalised image embeddings. With a limit the images are chosen by the
    seed.

    Example:
        >>> from pathlib import Path
        >>> def scorer(images, texts, pairs=None):
        ...     return torch.tensor([[1.0, 0.0], [0.0, 4.0]])
        >>> images = [ImageRef(Path("a.png")), ImageRef(Path("b.png"))]
        >>> ImageAveraged(scorer)(images, ["a", "b"], torch.tensor([[0, 1], [1, 0]]))
        tensor([2.0000, 0.5000])
    """

    def __init__(self, scorer: PairScorer, limit: int | None = 64, seed: int = 0) -> None:
        self.scorer = scorer
        self.limit = limit
        self.seed = seed

    @override
    def _text_scores(self, images: Sequence[ImageRef], texts: Sequence[str]) -> Float[Tensor, "M"]:
        # An image of many pairs counts once in the mean.
        distinct = list(dict.fromkeys(images))
        one_group = [""] * len(distinct)
        sampled = sample(one_group, self.limit, self.seed)
        chosen = [distinct[i] for i in sampled]
        scores = self.scorer(chosen, texts)
        return scores.mean(dim=0)
