"""A word-level tokenizer for models with a small closed vocabulary.

In: captions. Out: ids. Never: an id for a word that is not in the vocabulary.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vlmtune.errors import UserError

WORD = re.compile(r"\w+")  # whatever stands between words, such as a comma, makes no token


class WordTokenizer:
    """Maps each word to one id; has the interface of open_clip's tokenizers.

    Ids: 0 `<pad>`, 1 `<start>`, the words in order from 2, and last `<end>`: it is the highest id,
    so open_clip's pooling at the position of the highest id finds it. Text is lower-cased and split
    at whitespace and punctuation. Longer captions are cut and keep the end token, as in open_clip.

    Args:
        words: The vocabulary, in id order.
        context_length: Tokens per caption, start and end included.

    Example:
        >>> tokenizer = WordTokenizer(["red", "cube"], context_length=5)
        >>> tokenizer(["Red cube.", "cube"]).tolist()
        [[1, 2, 3, 4, 0], [1, 3, 4, 0, 0]]
    """

    def __init__(self, words: Sequence[str], context_length: int) -> None:
        # The tokenizer finds no other words in a text.
        bad = [word for word in words if WORD.findall(word.lower()) != [word]]
        twice = len(words) - len(set(words))
        if not words or bad or twice:
            raise UserError(
                f"expected a vocabulary of distinct lower-case words, one a line, got {len(words)} "
                f"lines, {twice} repeated, {len(bad)} malformed {bad[:3]}: correct these lines"
            )
        self.words = tuple(words)
        self.context_length = context_length
        self.ids = {word: i + 2 for i, word in enumerate(words)}
        self.sot_token_id = 1
        self.eot_token_id = len(words) + 2
        self.vocab_size = len(words) + 3

    def __call__(
        self, texts: Sequence[str], context_length: int | None = None
    ) -> Int[Tensor, "n t"]:
        """Returns one row of ids per caption, padded with 0."""
        length = context_length or self.context_length
        result = torch.zeros(len(texts), length, dtype=torch.long)
        for row, text in zip(result, texts, strict=True):
            # The end token stays when a caption is cut, as it is the one that is pooled.
            words = self._encode(text)[: length - 2]
            ids = [self.sot_token_id, *words, self.eot_token_id]
            row[: len(ids)] = torch.tensor(ids)
        return result

    def check(self, texts: Iterable[str]) -> None:
        """Raises a `UserError` if a word is not in the vocabulary."""
        for text in texts:
            self._encode(text)

    def portable(self) -> Any:
        """Returns a tokenizer of transformers that gives the same ids.

        A word that is not in the vocabulary is an error there too.
        """
        named = {"pad_token": "<pad>", "bos_token": "<start>", "eos_token": "<end>"}
        # The order of ids is stated in the class docstring.
        vocabulary = {"<pad>": 0, "<start>": 1, **self.ids, "<end>": self.eot_token_id}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))  # noqa: S106
        inner.normalizer = normalizers.Lowercase()
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), behavior="removed", invert=True)
        inner.post_processor = processors.TemplateProcessing(
            single="<start> $A <end>",
            special_tokens=[(token, vocabulary[token]) for token in ("<start>", "<end>")],
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=inner, model_max_length=self.context_length, **named
        )

    def _encode(self, text: str) -> list[int]:
        words = WORD.findall(text.lower())
        unknown = sorted({word for word in words if word not in self.ids})
        if unknown:
            raise UserError(
                f"expected words of the model's {len(self.words)}-word vocabulary, got "
                f"{', '.join(map(repr, unknown))} in {text!r}: use its words, or a model that "
                "reads any, such as --model ViT-B-32-quickgelu:openai (for fit: --model.backbone)"
            )
        return [self.ids[word] for word in words]
