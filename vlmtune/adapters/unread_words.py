"""Words that no training text has, read by what the frozen model knows of them.

In: word embeddings of texts, states of images. Out: texts with such words hidden, and the meanings
of hidden words and of patches. Never: a change of the towers.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.base import Vectors
from vlmtune.adapters.towers import (
    each_token,
    image_tower,
    run_all,
    text_tower,
    value_path,
)
from vlmtune.adapters.word_pieces import ByToken, WordGroups, WordPieces
from vlmtune.adapters.words import word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.types import Tokens, send

CERTAINTY = 0.5  # of the evidence of a text, for each of its unread words
MeaningByToken = Float[Tensor, "n t d"]


class UnreadWords(nn.Module):
    r"""Hides the words that training never read, and compares their meanings with patches.

    A hidden word w has one trained embedding in place of its own, so that only the words around it
    tell which patches it reads. What it means is left to the frozen model: its normalised embedding
    $t_w$, of a text of this word alone, is compared with the normalised embeddings $z_p$ of the
    patches: $\mu e^{\tau} \, (t_w - t_0)^\top (z_p - m)$, with the embedding $t_0$ of an empty
    text, the logit scale $e^\tau$ of the model and a trained m. $z_p$ is what the model makes of an
    image whose only patch after the last block is p. The difference is what the word adds to a
    text: large for colours, small for sizes, of which patches say nothing. $\mu$ is fixed.

    In training some words count as unread, so that hidden words learn where to look. A call hides
    such a word in all n texts that it is given; a joint adapter prepares the texts of a step in
    about four calls, ordered by length. Word w counts as unread with probability
    $\rho \lVert t_w - t_0 \rVert$. Words like "there" hardly change a text's embedding, so there
    is little to learn from hiding them. A call hides at most $1 + n / 4$ words of the vocabulary.

    Afterwards a word is hidden if no training text had it. Each word's embedding has a factor of
    $1 + r_w$, and $r_w$ is 0 until a gradient changes it, so it shows which words were read. Before
    training no word is hidden.

    A word that the tokenizer splits (`WordPieces`) is hidden as a whole if training lacked one of
    its pieces. It has one meaning, at its last piece. Training hides only words of one piece.

    Where a class token alone stands for an image, patches after the last block were never compared
    with texts. $z_p$ then embeds what the class token would take from a patch in this block
    (`value_path`).

    Source: ours. The value of a patch, embedded like a class token, is that of MaskCLIP (Zhou et
    al. 2022, section 3.2).

    Args:
        backbone: The frozen model.
        rate: $\rho$, how often training hides words.
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
        self.vocabulary = self.tower.embedding.num_embeddings
        self.pieces = WordPieces(self.tower.vocabulary(), self.vocabulary)
        self.read = nn.Parameter(torch.zeros(self.vocabulary, 1))
        self.hidden_word = nn.Parameter(torch.zeros(self.tower.width))
        # Without a weight nothing is compared, and a mean would have no gradient.
        self.mean = nn.Parameter(torch.zeros(self.width), requires_grad=weight > 0)

    def forward(self, text: Tokens) -> tuple[ByToken, MeaningByToken]:
        r"""Which tokens are hidden; $\mu e^\tau \, (t_w - t_0)$ at the end of each hidden word."""
        words = self.words(text)
        if self.training:
            return self._sampled(text, words.is_alone)
        # Words that no training text had; none before training.
        is_word = word_mask(text.mask, self.special)
        is_unread = is_word & ~self.known(text) & self.read.any()
        hidden = words.any_piece(is_unread)
        meanings = self.mean.new_zeros(*hidden.shape, self.width)
        if not self.scale:
            return hidden, meanings
        row, end = (words.is_last & hidden).nonzero(as_tuple=True)
        same_word = words.number[row] == words.number[row, end][:, None]
        size = same_word.sum(dim=1)
        # Words with the same number of pieces are embedded together.
        for pieces in size.unique().tolist():
            of_size = size == pieces
            rows = row[of_size]
            ends = end[of_size]
            positions = ends[:, None] + torch.arange(1 - pieces, 1, device=text.device)
            forms = text.word_ids[rows[:, None], positions]
            ids, number = forms.unique(dim=0, return_inverse=True)
            meanings[rows, ends] = self._meanings(ids, text)[number]
        return hidden, self.scale * meanings

    def _sampled(self, text: Tokens, is_alone: ByToken) -> tuple[ByToken, MeaningByToken]:
        """The same in training, for words that count as unread."""
        # On the CPU, so that every device samples the same words.
        sampled = send(torch.rand(self.vocabulary), text.device)
        of_token = sampled[text.word_ids].masked_fill(~is_alone, 1.0)
        # Words of the texts have the number that was sampled for them, all others the largest.
        of_word = torch.ones_like(sampled)
        of_word = of_word.scatter_reduce(0, text.word_ids.flatten(), of_token.flatten(), "amin")
        most = min(1 + len(text) // 4, self.vocabulary)
        number, ids = of_word.topk(most, largest=False)
        meanings = self._meanings(ids[:, None], text)
        says = meanings.norm(dim=1)
        # A GPU would have to be waited for to drop the others, so they get an id that no word has.
        is_unread = number < self.rate * says
        ids = ids.masked_fill(~is_unread, self.vocabulary)
        # Row i of the table belongs to the i-th unread word, the last row to all other tokens.
        table = torch.cat([self.scale * meanings, meanings.new_zeros(1, self.width)])
        row_of = torch.full((self.vocabulary + 1,), most, device=text.device)
        row_of[ids] = torch.arange(most, device=text.device)
        row = row_of[text.word_ids].masked_fill(~is_alone, most)
        return row < most, table[row]

    def _meanings(self, ids: Int[Tensor, "k pieces"], text: Tokens) -> Float[Tensor, "k d"]:
        """$t_w - t_0$ of words, with the special tokens that a text has around its words."""
        before, _ = self.special
        special = self._special_ids(text)
        around = special.expand(len(ids), -1)
        leading = around[:, :before]
        trailing = around[:, before:]
        alone = torch.cat([leading, ids, trailing], dim=1)
        return self._embed(alone) - self._embed(special)

    def _special_ids(self, text: Tokens) -> Int[Tensor, "1 s"]:
        """The ids of the special tokens of a text, which all texts share."""
        before, after = self.special
        length = int(text.lengths[0])
        leading = text.word_ids[:1, :before]
        trailing = text.word_ids[:1, length - after : length]
        return torch.cat([leading, trailing], dim=1)

    def _embed(self, ids: Int[Tensor, "n t"]) -> Vectors:
        """The normalised embeddings of texts without padding."""
        values = self.tower.embedding(ids)
        with evaluation_mode(*self.tower.blocks):
            last = run_all(self.tower, Tokens.full(values.float()))
            return normalize(self.tower.finish(last), dim=1)

    def counted(
        self,
        evidence: Float[Tensor, "P"],
        by_word: Float[Tensor, "P t"],
        meanings: Float[Tensor, "#P t d"],
    ) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        r"""The evidence of a text with its unread words, and what these count for beside it.

        Args:
            evidence: That of all words that training texts had.
            by_word: What the patches that an unread word reads say of it; 0 of all others.
            meanings: As `forward` gives them after training: 0 of words that training texts had.
        """
        distance = meanings.norm(dim=2) / self.scale
        by_word = (2 * distance) ** 3 * by_word
        unread = by_word.sum(dim=1)
        certainty = CERTAINTY ** distance.gt(0).sum(dim=1)
        return certainty * (evidence + unread), unread

    def words(self, text: Tokens) -> WordGroups:
        """The words of texts, of one or several tokens."""
        is_word = word_mask(text.mask, self.special)
        return self.pieces(text.word_ids, is_word)

    def known(self, text: Tokens) -> ByToken:
        """Which tokens a training text had."""
        return self.read[text.word_ids, 0] != 0

    def hide(self, text: Tokens, hidden: ByToken) -> Tokens:
        """Replaces the embeddings of hidden words, and multiplies the others by $1 + r_w$."""
        factor = 1 + self.read[text.word_ids]
        read = text.values * factor
        values = torch.where(hidden[:, :, None], self.hidden_word, read)
        return replace(text, values=values)

    def patches(self, last: Tokens) -> Float[Tensor, "n patches d"]:
        """$z_p - m$ of the patches of images, from the state after the last block."""
        return self._compared(last.values[:, self.image_tower.special :])

    def values(self, state: Tokens, layer: int) -> Float[Tensor, "n patches d"]:
        """The same by the values of patches in the last block, from a state before it."""
        tower = self.image_tower
        with evaluation_mode(*tower.blocks):
            before = tower.run(state, tower.layers + 1 + layer, tower.layers - 1)
            patches = before.values[:, tower.special :]
            values = value_path(tower, patches.flatten(0, 1))
        return self._compared(values.view_as(patches))

    def _compared(self, patches: Float[Tensor, "n patches w"]) -> Float[Tensor, "n patches d"]:
        tower = self.image_tower
        with evaluation_mode(*tower.blocks):
            # Each patch is embedded as if it were an image.
            flat = each_token(tower, patches.flatten(0, 1), tower.special)
        unit = normalize(flat, dim=1)
        return unit.unflatten(0, patches.shape[:2]) - self.mean
