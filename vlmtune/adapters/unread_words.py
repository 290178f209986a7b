"""Words that no training text has, read by what the frozen model knows of them.

In: word embeddings of texts, states of images. Out: texts with such words hidden, and the meanings
of hidden words and of patches. Never: a change of the towers.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.towers import each_token, image_tower, run_all, text_tower
from vlmtune.adapters.words import word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import Tokens, positions


class UnreadWords(nn.Module):
    r"""Hides the words that training never read, and compares their meanings with patches.

    A hidden word w has one trained embedding in the place of its own, so that only the words around
    it tell which patches it reads. What it means is left to the frozen model: its normalised
    embedding $t_w$, of a text of this word alone, is compared with the normalised embeddings $z_p$
    of the patches: $\mu e^{\tau} \, t_w^\top (z_p - m)$, with the logit scale $e^\tau$ of the model
    and a trained m. $\mu$ is fixed.

    In training a text has one hidden word with probability `rate`, which may be any of its words,
    so that hidden words learn where to look. Afterwards a word is hidden if no training text had
    it. Each word's embedding has a factor of $1 + r_w$, and $r_w$ is 0 until a gradient changes it,
    which tells the words that were read. Before training no word is hidden.

    Words are the tokens of the model: of a word in pieces, single pieces may be unread.

    Source: ours. Patches compared in the shared space are those of MaskCLIP (Zhou et al. 2022,
    section 3.2).

    Args:
        backbone: The frozen model.
        rate: Probability that a text has a hidden word in training.
        weight: $\mu$, the weight of the comparison.
    """

    def __init__(self, backbone: Backbone, rate: float, weight: float) -> None:
        super().__init__()
        self.rate = rate
        self.tower = text_tower(backbone)
        self.image_tower = image_tower(backbone)
        self.special = backbone.text_special
        self.scale = weight * backbone.logit_scale
        self.width = backbone.embed_dim
        vocabulary = self.tower.embedding.num_embeddings
        self.read = nn.Parameter(torch.zeros(vocabulary, 1))
        self.hidden_word = nn.Parameter(torch.zeros(self.tower.width))
        # Without a weight nothing is compared, and a mean would have no gradient.
        self.mean = nn.Parameter(torch.zeros(self.width), requires_grad=weight > 0)

    def hidden(self, text: Tokens) -> Bool[Tensor, "n t"]:
        """Which tokens are hidden, on the CPU: in training at random, later those never read."""
        words = word_mask(text.cpu_mask, self.special)
        if not self.training:
            untrained = ~self.read.any()
            unread = ~self.known(text) & ~untrained
            return words & unread.cpu()
        # Drawn on the CPU, as a training step would wait for a device to say which words these are.
        # The word with the largest number is as likely as any other.
        numbers = torch.rand(words.shape)
        numbers = numbers.masked_fill(~words, -1)
        largest = numbers.amax(dim=1, keepdim=True)
        is_chosen = numbers == largest
        of_text = torch.rand(len(words), 1)
        hides_one = of_text < self.rate
        # A text without words has no largest number: every one of its tokens has -1.
        return words & is_chosen & hides_one

    def known(self, text: Tokens) -> Bool[Tensor, "n t"]:
        """Which tokens a training text had."""
        return self.read[text.word_ids, 0] != 0

    def hide(self, text: Tokens, hidden: Bool[Tensor, "n t"]) -> Tokens:
        """Replaces the embeddings of hidden words, and multiplies the others by $1 + r_w$."""
        factor = 1 + self.read[text.word_ids]
        read = text.values * factor
        values = torch.where(hidden[:, :, None], self.hidden_word, read)
        return replace(text, values=values)

    def meanings(self, text: Tokens, hidden: Bool[Tensor, "n t"]) -> Float[Tensor, "n t d"]:
        r"""$\mu e^\tau \, t_w$ of hidden words, 0 of all other tokens; `hidden` is on the CPU."""
        row, position = positions(hidden, text.device)
        meanings = text.values.new_zeros(*hidden.shape, self.width)
        if not len(row):
            return meanings
        # A text of the word alone: its special tokens stay around it, and those behind the words
        # stand at the end of the text, wherever that is.
        before, after = self.special
        length = text.mask.sum(dim=1)[row, None]
        leading = torch.arange(before, device=row.device).expand(len(row), -1)
        trailing = length - after + torch.arange(after, device=row.device)
        columns = torch.cat([leading, position[:, None], trailing], dim=1)
        alone = Tokens.full(text.values[row[:, None], columns])
        with evaluation_mode(*self.tower.blocks):
            last = run_all(self.tower, alone)
            embedded = normalize(self.tower.finish(last), dim=1)
        return meanings.index_put((row, position), self.scale * embedded)

    def patches(self, last: Tokens) -> Float[Tensor, "n patches d"]:
        """$z_p - m$ of the patches of images, from the state after the last block."""
        tower = self.image_tower
        patches = last.values[:, tower.special :]
        with evaluation_mode(*tower.blocks):
            # Each patch is embedded as if it were an image.
            flat = each_token(tower, patches.flatten(0, 1), tower.special)
            unit = normalize(flat, dim=1)
            embedded = unit.unflatten(0, patches.shape[:2])
        return embedded - self.mean
