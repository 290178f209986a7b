"""Context optimisation (CoOp): a learned prompt before the words of every text.

In: frozen image embeddings, and word embeddings. Out: scores of all pairs.
Never: a change of the words or the tower.
"""

from typing import Any

import torch
from pydantic import PositiveInt
from torch import nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Vectors
from vlmtune.adapters.prompting import DEVIATION, check_room, insert, word_embeddings
from vlmtune.adapters.towers import run_all, text_tower
from vlmtune.backbones.base import Backbone
from vlmtune.types import FeatureSpec, Pooled, Tokens


class ContextPrompts(DualAdapter[Pooled, Tokens]):
    r"""Trains m context vectors before the words; images come from the feature store.

    $s_{ij} = e^{\tau} \cos(v_i, G([\mathrm{start}] c_1 \dots c_m\, y_j\, [\mathrm{end}])) + b$,
    $c$ (m x w) learned, $y_j$ the word embeddings of text j, $G$ the frozen text tower from words
    to d. Texts too long for the tower lose their last words, as they do in its tokenizer.

    Choose it where all captions have one form, such as the names of classes.

    - Requirements: images with captions; image features come from the store.
    - Recommended: `init: a photo of a`, which starts near the backbone.
    - Relations: `WordPrompts` changes the words themselves, `DeepPrompts` every block.
    - Config: `--model.adapter context_prompts`.

    Source: Zhou et al. 2022 (CoOp), "Learning to prompt for vision-language models", section 3.2,
    equation (2) with the class at the end. Their $[V]_m$ is $c_m$, $M$ is m, $g$ is $G$, $1 / \tau$
    is $e^{\tau}$. Random contexts have a standard deviation of 0.02, as theirs; their released
    default is m = 16.

    Args:
        length: m, without `init`.
        init: Words, such as "a photo of a", whose embeddings the context starts from; m is then the
            number of their tokens. None for random vectors.
        options: Options of `DualAdapter`.

    Example:
        >>> ContextPrompts(length=2).text_input.kind
        'words'
    """

    identity_at_init = False

    def __init__(self, length: PositiveInt = 4, init: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.length = length
        self.init = init
        self.image_input = FeatureSpec("pooled")
        self.text_input = FeatureSpec("words")

    @override
    def attach(self, backbone: Backbone) -> None:
        self.tower = text_tower(backbone)
        super().attach(backbone)
        self.special = backbone.text_special
        if self.init is None:
            context = DEVIATION * torch.randn(self.length, self.tower.width)
        else:
            words = word_embeddings(self.tower, self.init, self.special)
            context = words.cpu().float()
        # A caption needs a position for at least one word beside the prompt.
        check_room(self.tower, len(context), self.special)
        self.context = nn.Parameter(context)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        context = self.context.expand(len(text), -1, -1)
        prompted = insert(text, context, self.tower, self.special)
        return self.tower.finish(run_all(self.tower, prompted))
