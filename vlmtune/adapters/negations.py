"""Texts with a negation, whose frozen score says the opposite of what they say.

In: tokens of texts. Out: which texts have one, and the embedding to use instead. Never: weights.
"""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from vlmtune.adapters.base import Vectors
from vlmtune.adapters.towers import run_all, text_tower
from vlmtune.adapters.word_pieces import WordGroups
from vlmtune.adapters.words import ids_of_words, word_mask
from vlmtune.backbones.base import Backbone, TextTower
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import Tokens

_WORDS = ("no", "not", "cannot", "without", "neither", "nor", "never", "none")
_WORDS += ("nobody", "nothing", "nowhere")
_CONTRACTED = ("isn't", "aren't", "wasn't", "weren't", "don't", "doesn't", "didn't", "can't")
_CONTRACTED += ("couldn't", "won't", "wouldn't", "hasn't", "haven't", "hadn't", "shouldn't")
_CONTRACTED += ("mustn't", "needn't", "ain't")
_CURLY = tuple(word.replace("'", "’") for word in _CONTRACTED)
NEGATIONS = (*_WORDS, *_CONTRACTED, *_CURLY)
"""Words that turn a statement into its opposite."""

_ANY = -1  # in place of an id: any token
_UNREAD = -2  # an id that no token has


class Negations(nn.Module):
    """Tells which texts have a negation; `empty` is the embedding of an empty text.

    CLIP reads "no cube" as "cube": if the true caption among four has a negation, ViT-B/32 chooses
    it in 7 % of items (NegBench, Alhamoud et al. 2025, COCO; chance 25 %). An empty text says
    nothing of the image: scored by it, no negated caption is favoured. A negation that no training
    text had is left as it is, since an adapter cannot read it either.

    A negation of several tokens, such as "isn't", counts where all of them stand together, and one
    that is only a part of a word ("no" in "piano") does not count.

    Source: ours.
    """

    ids: Tensor
    last: Tensor
    empty: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        tower = text_tower(backbone)
        # A tokenizer may keep capitals.
        words = [*NEGATIONS, *map(str.capitalize, NEGATIONS)]
        known = ids_of_words(tower, words, backbone.text_special)
        forms = set()
        for of_word in known.values():
            forms.update(map(tuple, of_word))
        self.most = max(map(len, forms), default=0)  # tokens of a negation
        rows = []
        last = []
        for form in sorted(forms):
            rest = [_ANY] * (self.most - len(form))
            rows.append([*form, *rest])
            last.append(len(form) - 1)
        ids = torch.tensor(rows, dtype=torch.int64)
        empty = torch.zeros(1, backbone.embed_dim)
        if known:
            tokens = tower.words([next(iter(known))])
            empty = _without_words(tower, tokens, backbone.text_special)
        self.register_buffer("ids", ids, persistent=False)
        self.register_buffer("last", torch.tensor(last, dtype=torch.int64), persistent=False)
        self.register_buffer("empty", empty, persistent=False)

    def forward(
        self, text: Tokens, known: Bool[Tensor, "n t"], words: WordGroups
    ) -> Bool[Tensor, "n"]:
        """Which texts have a negation whose tokens are `known`: a training text had them."""
        # A graph of ONNX has no maximum over nothing.
        if not len(self.ids):
            return known.new_zeros(len(text))
        ids = text.word_ids.masked_fill(~known, _UNREAD)
        # A negation may start at each token, so its tokens are compared with those that follow.
        following = self._following(ids, _UNREAD)[:, :, None]
        matches = (following == self.ids) | (self.ids == _ANY)
        # It is whole words.
        is_last = self._following(words.is_last, False)
        ends = is_last[:, :, self.last]
        is_negation = matches.all(dim=3) & ends & words.is_first[:, :, None]
        return is_negation.any(dim=2).any(dim=1)

    def _following(self, tokens: Shaped[Tensor, "n t"], beyond: int) -> Shaped[Tensor, "n t most"]:
        """Each token and those after it, as many as a negation has."""
        parts = []
        for i in range(self.most):
            longer = pad(tokens, (0, i), value=beyond)
            parts.append(longer[:, i:])
        return torch.stack(parts, dim=2)


@torch.no_grad()
def _without_words(tower: TextTower, tokens: Tokens, special: tuple[int, int]) -> Vectors:
    """The embedding of the special tokens around the words of one text."""
    is_word = word_mask(tokens.mask, special)
    without = Tokens.full(tokens.values[~is_word][None])
    with evaluation_mode(*tower.blocks):
        last = run_all(tower, without)
        return normalize(tower.finish(last), dim=1)
