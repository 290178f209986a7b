"""Prompt tuning as in Cola: trains the word embeddings of the queries.

In: frozen image embeddings, and word embeddings with their ids. Out: scores of all pairs.
Never: a change of the tower.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Vectors
from vlmtune.adapters.towers import run_all, text_tower
from vlmtune.adapters.words import word_mask
from vlmtune.backbones.base import Backbone, TextTower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pooled, Tokens

WORDS_AT_A_TIME = 512  # their embeddings are in memory together


class WordPrompts(DualAdapter[Pooled, Tokens]):
    r"""Trains word embeddings; both towers stay frozen and images come from the feature store.

    $s_{ij} = e^{\tau} \cos(v_i, G(E_{y_j} + \Delta_{y_j})) + b$. $E$ (V x w) is the frozen table of
    word embeddings, $y_j$ the t token ids of text j, $\Delta$ (V x w) the learned difference, zero
    at the start, $G$ the frozen text tower from words to d. Start and end tokens have no $\Delta$.
    The row of a word that no training text contains gets no gradient and stays zero, so "the words
    of the training queries" need no list.

    An export holds all rows, or only the rows of listed `words`: $\Delta$ of CLIP takes 101 MB,
    $\Delta$ of 500 words 1 MB.

    Choose it where the meaning of some words is to change, and nothing else.

    - Requirements: images with captions; image features come from the store.
    - Recommended: `initial_scale: 10` and `learn_scale: true` with `PairBCE`; `words` for small
      exports.
    - Relations: `ContextPrompts` adds vectors before the words and leaves the words as they are.
    - Config: `--model.adapter word_prompts`.

    Source: Ray et al. 2023 (Cola), sections 5.2 and 11.1, "Prompt-tune: we tune the embedding layer
    of the text words used in our training queries while keeping everything else frozen". Ours:
    special tokens stay, and a difference is learned, so weight decay pulls to the pre-trained
    embedding.

    Args:
        words: The words, or captions of them, whose embeddings are trained. None for all.
        options: Options of `DualAdapter`.

    Example:
        >>> WordPrompts(["red cube", "blue cube"]).words
        ('blue', 'cube', 'red')
    """

    def __init__(self, words: list[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.words = None if words is None else _distinct(words)
        self.image_input = FeatureSpec("pooled")
        self.text_input = FeatureSpec("words")

    @override
    def attach(self, backbone: Backbone) -> None:
        self.tower = text_tower(backbone)
        super().attach(backbone)
        self.special = backbone.text_special
        total = self.tower.embedding.num_embeddings
        # Rows of trained words alone keep an export small.
        ids = torch.arange(total)
        if self.words is not None:
            trained_ids = _rows(self.tower, self.words, self.special)
            ids = trained_ids.cpu()
        # `row_of` leads from a token id to its row of delta.
        row_of = torch.full((total,), -1)  # -1 for an untrained id
        row_of[ids] = torch.arange(len(ids))
        self.register_buffer("row_of", row_of, persistent=False)
        delta = torch.zeros(len(ids), self.tower.width)
        self.delta = nn.Parameter(delta)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        words = self.prompted(text.trimmed())
        return self.tower.finish(run_all(self.tower, words))

    def prompted(self, words: Tokens) -> Tokens:
        """Adds the learned differences to word embeddings."""
        row = self.get_buffer("row_of")[words.word_ids]
        real = word_mask(words.mask, self.special)
        trained = (row >= 0) & real
        # Untrained ids read row 0 and are masked, as an index of -1 would read the last row.
        learned = self.delta[row.clamp_min(0)]
        learned = learned * trained[:, :, None]
        return replace(words, values=words.values + learned)


def _distinct(words: list[str]) -> tuple[str, ...]:
    """The distinct words of a list of words or captions, sorted."""
    distinct = {word for line in words for word in line.split()}
    if not distinct:
        raise UserError("expected words to train, got none: list some or leave `words` out")
    return tuple(sorted(distinct))


def _rows(tower: TextTower, words: Sequence[str], special: tuple[int, int]) -> Int[Tensor, "rows"]:
    """The distinct token ids of words, in order."""
    ids = []
    for start in range(0, len(words), WORDS_AT_A_TIME):
        part = words[start : start + WORDS_AT_A_TIME]
        tokens = tower.words(part)
        real = word_mask(tokens.mask, special)
        ids.append(tokens.word_ids[real])
    return torch.cat(ids).unique()
