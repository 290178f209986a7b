"""Prompt tuning as Cola has it: the embeddings of the words of the queries are trained."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmtune.adapters.base import DualAdapter
from vlmtune.adapters.towers import text_tower
from vlmtune.adapters.words import word_mask
from vlmtune.backbones.base import Backbone, TextTower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pooled, Tokens

WORDS_AT_A_TIME = 512


class WordPrompts(DualAdapter[Pooled, Tokens]):
    r"""Trains word embeddings; both towers stay frozen and images come from the feature store.

    $s_{ij} = e^{\tau} \cos(v_i, G(E_{y_j} + \Delta_{y_j})) + b$. $E$ (V x w) is the frozen table of
    word embeddings, $y_j$ the token ids of text j (t of them), $\Delta$ (V x w) what is learned,
    zero at the start, $G$ the frozen text tower from words to d. Start and end tokens have no
    $\Delta$. The row of a word that no training text contains gets no gradient and stays zero, so
    "the words of the training queries" need not be listed.

    An export holds all rows, or where `words` are listed those alone: $\Delta$ of CLIP is 101 MB,
    that of 500 words 1 MB.

    Source: Ray et al. 2023 (Cola), sections 5.2 and 11.1, "Prompt-tune: we tune the embedding layer
    of the text words used in our training queries while keeping everything else frozen". That the
    special tokens stay, and learning a difference, so that weight decay pulls to the pre-trained
    embedding, are ours.

    Args:
        words: The words whose embeddings are trained: a list, or a text file of words or captions
            (which a checkpoint or an export does not need again). None for all.
        learn_scale: Whether $\tau$ and $b$ are trained, which a sigmoid loss needs.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Raises:
        UserError: The file cannot be read, or there are no words.

    Example:
        >>> WordPrompts(["red cube", "blue cube"]).words
        ('blue', 'cube', 'red')
    """

    def __init__(
        self,
        words: list[str] | str | os.PathLike | None = None,
        learn_scale: bool = False,
        initial_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.words = None if words is None else _distinct(words)
        if self.words is not None:
            # The file may be gone where the weights are loaded.
            self.init_args["words"] = list(self.words)
        self.learn_scale, self.initial_scale = learn_scale, initial_scale
        self.image_input, self.text_input = FeatureSpec("pooled"), FeatureSpec("words")

    def attach(self, backbone: Backbone) -> None:
        """Makes a zero for each trained number.

        Raises:
            UserError: The text tower cannot be had, or lacks a word.
        """
        self.tower = text_tower(backbone)
        super().attach(backbone)
        self.set_scale(self.learn_scale, self.initial_scale)
        self.special = backbone.text_special
        rows = torch.arange(self.tower.embedding.num_embeddings)
        if self.words is not None:
            rows = _rows(self.tower, self.words, self.special).cpu()
        self.register_buffer("rows", rows, persistent=False)
        self.delta = nn.Parameter(torch.zeros(len(rows), self.tower.width))

    def embed_image(self, image: Pooled) -> Float[Tensor, "n d"]:
        """Returns the frozen embeddings."""
        return image.values

    def embed_text(self, text: Tokens) -> Float[Tensor, "n d"]:
        """Adds what was learned to the words and runs the tower."""
        words = self.prompted(text.trimmed())
        return self.tower.finish(self.tower.run(self.tower.start(words), 0, self.tower.layers))

    def prompted(self, words: Tokens) -> Tokens:
        """Words with what was learned added to them."""
        rows: Int[Tensor, "rows"] = self.get_buffer("rows")
        place = torch.searchsorted(rows, words.word_ids.contiguous()).clamp_max(len(rows) - 1)
        trained = (rows[place] == words.ids) & word_mask(words.mask, self.special)
        learned = self.delta[place] * trained[:, :, None]
        return replace(words, values=words.values + learned)


def _distinct(words: list[str] | str | os.PathLike) -> tuple[str, ...]:
    """The distinct words of a list or file of words or captions, sorted."""
    lines = words if isinstance(words, list) else _lines(Path(words))
    found = tuple(sorted({word for line in lines for word in line.split()}))
    if not found:
        raise UserError("expected words to train, got none: list some or leave `words` out")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(
            f"expected a text file of words in {path}, got {type(error).__name__}: correct `words`"
        ) from error


def _rows(tower: TextTower, words: Sequence[str], special: tuple[int, int]) -> Int[Tensor, "rows"]:
    """The token ids of words, each once, in order."""
    found = []
    for start in range(0, len(words), WORDS_AT_A_TIME):
        features = tower.words(words[start : start + WORDS_AT_A_TIME])
        found.append(features.word_ids[word_mask(features.mask, special)])
    return torch.cat(found).unique()
