"""Context optimisation: a learned prompt before the words, for all texts or for each class."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmtune.adapters.base import DualAdapter
from vlmtune.adapters.prompting import DEVIATION, check_room, insert, word_embeddings
from vlmtune.adapters.towers import text_tower
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pooled, Tokens


class ContextPrompts(DualAdapter[Pooled, Tokens]):
    r"""Trains m context vectors before the words; images come from the feature store.

    $s_{ij} = e^{\tau} \cos(v_i, G([\mathrm{start}] c_1 \dots c_m\, y_j\, [\mathrm{end}])) + b$,
    $c$ (m x w) learned, $y_j$ the word embeddings of text j, $G$ the frozen text tower from words
    to d. Texts too long for the tower lose their last words, as they do in its tokenizer.

    With `classes` each of these texts has a context of its own, (1 + C) x m x w in all; any other
    text has the first. All start alike.

    Source: Zhou et al. 2022 (CoOp), "Learning to prompt for vision-language models", section 3.2:
    equation (2) with the class at the end, and equation (3) for contexts of each class. Their
    $[V]_m$ is $c_m$, $M$ is m, $g$ is $G$, $1 / \tau$ is $e^{\tau}$. Random contexts are drawn with
    a standard deviation of 0.02, as theirs; the released default is m = 16.

    Args:
        length: m, where `init` is not given.
        init: Words whose embeddings the context starts as, such as "a photo of a"; m is then how
            many tokens they are. None for random vectors.
        classes: Texts with a context of their own.
        learn_scale: Whether $\tau$ and $b$ are trained, which a sigmoid loss needs.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Raises:
        UserError: `length` is below 1 or a class is listed twice.

    Example:
        >>> ContextPrompts(length=2).text_input.kind
        'words'
    """

    identity_at_init = False

    def __init__(
        self,
        length: int = 4,
        init: str | None = None,
        classes: list[str] | None = None,
        learn_scale: bool = False,
        initial_scale: float | None = None,
    ) -> None:
        super().__init__()
        if length < 1:
            raise UserError(f"expected at least 1 context vector, got {length}: raise `length`")
        self.length, self.init, self.classes = length, init, tuple(classes or ())
        if len(set(self.classes)) < len(self.classes):
            raise UserError(f"expected distinct classes, got {classes}: list each once")
        self.learn_scale, self.initial_scale = learn_scale, initial_scale
        self.image_input, self.text_input = FeatureSpec("pooled"), FeatureSpec("words")

    def attach(self, backbone: Backbone) -> None:
        """Makes the contexts.

        Raises:
            UserError: The text tower cannot be had, does not know a word of `init` or `classes`, or
                has no room for the context.
        """
        self.tower = text_tower(backbone)
        super().attach(backbone)
        self.set_scale(self.learn_scale, self.initial_scale)
        self.special = backbone.text_special
        if self.init is None:
            context = DEVIATION * torch.randn(self.length, self.tower.width)
        else:
            context = word_embeddings(self.tower, self.init, self.special).cpu().float()
        check_room(self.tower, len(context), self.special)
        self.context = nn.Parameter(context.repeat(1 + len(self.classes), 1, 1))
        self._class_of = self._ids_of_classes()

    def _ids_of_classes(self) -> dict[tuple[int, ...], int]:
        """The number of the context of each class, from 1, by its token ids."""
        if not self.classes:
            return {}
        known = {ids: i + 1 for i, ids in enumerate(_ids(self.tower.words(self.classes)))}
        if len(known) < len(self.classes):
            raise UserError(
                f"expected classes with tokens of their own, got {len(known)} distinct ones of "
                f"{len(self.classes)}: rename those that differ only in case or punctuation"
            )
        return known

    def contexts(self, words: Tokens) -> Int[Tensor, "n"]:
        """For each text the number of its context: 0, or that of its class from 1."""
        if not self._class_of:
            return torch.zeros(len(words), dtype=torch.long, device=words.mask.device)
        numbers = [self._class_of.get(ids, 0) for ids in _ids(words)]
        return torch.tensor(numbers, dtype=torch.long, device=words.mask.device)

    def embed_image(self, image: Pooled) -> Float[Tensor, "n d"]:
        """Returns the frozen embeddings."""
        return image.values

    def embed_text(self, text: Tokens) -> Float[Tensor, "n d"]:
        """Puts the context before the words and runs the tower."""
        prompted = insert(text, self.context[self.contexts(text)], self.tower, self.special)
        return self.tower.finish(self.tower.run(self.tower.start(prompted), 0, self.tower.layers))


def _ids(words: Tokens) -> list[tuple[int, ...]]:
    """The token ids of each text."""
    rows = zip(words.word_ids.tolist(), words.mask.sum(dim=1).tolist(), strict=True)
    return [tuple(ids[:length]) for ids, length in rows]
