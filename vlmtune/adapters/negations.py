"""Texts with a negation, whose frozen score says the opposite of what they say.

In: tokens of texts. Out: which texts have one, and the embedding to use instead. Never: weights.
"""

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.base import Vectors
from vlmtune.adapters.towers import run_all, text_tower
from vlmtune.adapters.words import one_token_ids
from vlmtune.backbones.base import Backbone, TextTower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import Tokens

NEGATIONS = ("no", "not", "'t", "without", "neither", "nor", "never", "none", "nothing")
"""Words that turn a statement into its opposite; "'t" is the end of "isn't"."""


class Negations(nn.Module):
    """Tells which texts have a negation; `empty` is the embedding of an empty text.

    CLIP reads "no cube" as "cube": if the true caption among four has a negation, ViT-B/32 chooses
    it in 7 % of items (NegBench, Alhamoud et al. 2025, COCO; chance 25 %). An empty text says
    nothing of the image: scored by it, no negated caption is favoured. A negation that no training
    text had is left as it is, since an adapter cannot read it either.

    Words that the model's vocabulary lacks or that it splits into pieces are left out.

    Source: ours.
    """

    ids: Tensor
    empty: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        tower = text_tower(backbone)
        before, _ = backbone.text_special
        known = one_token_ids(tower, NEGATIONS, backbone.text_special)
        ids = torch.tensor(list(known.values()), dtype=torch.int64)
        empty = torch.zeros(1, backbone.embed_dim)
        if known:
            first = next(iter(known))
            empty = _without_words(tower, tower.words([first]), before)
        self.register_buffer("ids", ids, persistent=False)
        self.register_buffer("empty", empty, persistent=False)

    def forward(self, text: Tokens, known: Bool[Tensor, "n t"]) -> Bool[Tensor, "n"]:
        """Which texts have a negation that a training text had."""
        # A graph of ONNX has no maximum over nothing.
        if not len(self.ids):
            return known.new_zeros(len(text))
        is_negation = (text.word_ids[:, :, None] == self.ids).any(dim=2)
        return (is_negation & known & text.mask).any(dim=1)


@torch.no_grad()
def _without_words(tower: TextTower, tokens: Tokens, position: int) -> Vectors:
    """The embedding of the special tokens around the word at a position."""
    values = tokens.values
    special = torch.cat([values[:, :position], values[:, position + 1 :]], dim=1)
    without = Tokens.full(special)
    with evaluation_mode(*tower.blocks):
        last = run_all(tower, without)
        return normalize(tower.finish(last), dim=1)
