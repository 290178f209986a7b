"""LLaVA: a language model that reads an image, asked whether a caption is true of it.

In: images and captions, or whole questions. Out: log-odds of one answer against another.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LlavaForConditionalGeneration
from typing_extensions import override

from vlmtune.backbones.base import Abilities, Fusion
from vlmtune.backbones.hf.backbone import HFBackbone
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.staging import (
    check_words,
    embed_words,
    fits_fusion_alone,
    gradients,
    last_real,
    parameters_of,
    side_by_side,
    unmasked,
)
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pixels, Tokens

IMAGE = "<image>"  # gives way to all tokens of the image
CAPTION = "{caption}"  # gives way to the caption
PROMPT = f'USER: {IMAGE}\nDoes this figure show "{CAPTION}"? Please answer yes or no. ASSISTANT:'


class Llava(HFBackbone):
    r"""LLaVA (Liu et al. 2023, arXiv 2304.08485) as `transformers.LlavaForConditionalGeneration`.

    The score of an image and a caption is $\log p(\text{yes} \mid I, T) - \log p(\text{no} \mid I,
    T)$, with the probabilities of the answer's first token after a question about both (the
    question of VQAScore, Lin et al. 2024, arXiv 2404.01291, which takes $p(\text{yes})$ alone).
    The vision tower runs once per image, the language model once per pair. There are no embeddings.
    Image features are the tokens that the language model reads, text features the words of the
    whole question.

    A question that is longer than the language model's context loses words at the end of the
    caption.

    Args:
        prompt: The question, in the form the model was tuned on, with one `<image>` and, after it,
            one `{caption}`.
        true_answer: The answer for a true caption.
        false_answer: The answer for a false one; it begins with another token.
    """

    kind = LlavaForConditionalGeneration
    abilities = Abilities(matching=True)

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        image_size: int | None = None,
        prompt: str = PROMPT,
        true_answer: str = "Yes",
        false_answer: str = "No",
        peft: str | None = None,
    ) -> None:
        before, _, after = prompt.partition(IMAGE)
        if CAPTION in before or after.count(CAPTION) != 1 or IMAGE in after:
            raise UserError(
                f"expected a prompt with one {IMAGE} and one {CAPTION} after it, got {prompt!r}: "
                "write it as the model was tuned on"
            )
        self.prompt = prompt
        self.answers = (true_answer, false_answer)
        super().__init__(model, revision, precision, image_size, peft)

    @override
    def assemble(self, loaded: Loaded) -> None:
        self._tokenizer = loaded.tokenizer
        # Texts as they are encoded depend on the question, so features that are stored do too.
        self._described = [*self._described, self.prompt]
        self._image_id = int(self.model.config.image_token_id)
        # Whatever two questions of different captions share belongs to the prompt.
        question, other = self._questions(["a", "dog"])
        first = self._ids(question)
        second = self._ids(other)
        lead = _shared(first, second)
        trail = _shared(first[::-1], second[::-1])
        self.text_special = (lead, trail)
        # What stands before an answer may change how it is cut, so a whole question is read.
        answers = self._answer_ids(question, *self.answers)
        position = first.index(self._image_id)
        self._fusion = LlavaFusion(self.model, self._dtype, position, answers)
        self.fusion = self._fusion

    @override
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        language = self.model.config.text_config
        self.embed_dim = self.image_width = self.text_width = language.hidden_size
        self.image_tokens = self._tokens(pixels).token_count
        self.logit_scale = 1.0
        # The one image token of a question gives way to all tokens of the image.
        self._longest = language.max_position_embeddings - self.image_tokens + 1

    @override
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Tokens:
        self.check_fits(spec, "image")
        with gradients(spec):
            return self._tokens(pixels.to(self.device))

    @override
    def encode_text(self, texts: Sequence[str], spec: FeatureSpec) -> Tokens:
        self.check_fits(spec, "text")
        questions = self._questions(texts)
        with gradients(spec):
            words = self._words(questions, cut=True)
        check_words(texts, words.mask, sum(self.text_special))
        return words

    @override
    def too_long(self, texts: Sequence[str]) -> list[str]:
        long = []
        for text, question in zip(texts, self._questions(texts), strict=True):
            if len(self._ids(question)) > self._longest:
                long.append(text)
        return long

    @override
    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        return fits_fusion_alone(self._fusion, spec, modality)

    def compare(
        self, pixels: Pixels, questions: Sequence[str], answers: tuple[str, str]
    ) -> Float[Tensor, "n"]:
        """Returns the log-odds of the first answer against the second, for n images and questions.

        Questions begin as `prompt` does, up to `<image>`.
        """
        ids = self._answer_ids(questions[0], *answers)
        words = self._words(questions)
        with torch.no_grad():
            image = self._tokens(pixels.to(self.device))
            return self._fusion.log_odds(image, words, ids)

    def _tokens(self, pixels: Pixels) -> Tokens:
        """The tokens of images that the language model reads."""
        pixels = pixels.to(self._dtype)
        output = self.model.model.get_image_features(pixels, return_dict=True)
        return unmasked(torch.stack(list(output.pooler_output)))

    def _questions(self, texts: Sequence[str]) -> list[str]:
        return [self.prompt.replace(CAPTION, text) for text in texts]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text)["input_ids"]

    def _words(self, questions: Sequence[str], cut: bool = False) -> Tokens:
        """The words of whole questions; with `cut`, long ones lose what the caption ends in."""
        rows = []
        for question in questions:
            row = self._ids(question)
            if row.count(self._image_id) != 1:
                raise UserError(
                    f"expected a caption without {IMAGE}, got {question!r}: take {IMAGE} out of it"
                )
            if len(row) > self._longest and not cut:
                raise UserError(
                    f"expected a question of at most {self._longest} tokens, got {len(row)}: "
                    "shorten the captions"
                )
            if len(row) > self._longest:
                # What stands after the caption, "Please answer yes or no", stays.
                after = len(row) - self.text_special[1]
                surplus = len(row) - self._longest
                row = row[: after - surplus] + row[after:]
            rows.append(row)
        longest = max(map(len, rows), default=0)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = True
        return embed_words(self.model.get_input_embeddings(), ids, mask)

    def _answer_ids(self, question: str, *answers: str) -> tuple[int, int]:
        """The first token of each of two answers to a question."""
        start = self._ids(question)
        first_tokens = []
        for answer in answers:
            ids = self._ids(f"{question} {answer}")
            length = len(start)
            if ids[:length] == start and len(ids) > length:
                first_tokens.append(ids[length])
        # Two answers of one token, or of none that is known, would score every caption alike.
        distinct = set(first_tokens) - {self._tokenizer.unk_token_id}
        if len(distinct) < 2:
            raise UserError(
                f"expected two answers that begin with tokens of their own, got {answers}: "
                "choose others, or end the prompt where the answer begins"
            )
        return first_tokens[0], first_tokens[1]


class LlavaFusion(Fusion):
    """The language model over a question, whose image token gives way to the tokens of an image.

    The image token stands at `position` of every question; `answers` are the tokens whose log-odds
    are the score.
    """

    image_input = FeatureSpec("tokens", -1)
    text_input = FeatureSpec("words")

    def __init__(
        self, model: Any, dtype: torch.dtype, position: int, answers: tuple[int, int]
    ) -> None:
        self._language = model.model.language_model
        self._head = model.lm_head
        self._dtype = dtype
        self.position = position
        self._answers = answers
        self.blocks = list(self._language.layers)
        self.tail = parameters_of(self._language.norm, self._head)

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        return self.log_odds(image, text, self._answers)

    def log_odds(self, image: Tokens, text: Tokens, answers: tuple[int, int]) -> Float[Tensor, "P"]:
        """The log-odds of the first answer against the second."""
        before = text.map(lambda tensor: tensor[:, : self.position])
        after = text.map(lambda tensor: tensor[:, self.position + 1 :])
        question = side_by_side(side_by_side(before, image), after)
        output = self._language(
            inputs_embeds=question.values.to(self._dtype),
            attention_mask=question.mask,
            use_cache=False,
        )
        # The model writes its answer behind the last token of the question.
        state = last_real(output.last_hidden_state, question.mask)
        logits: Float[Tensor, "P v"] = self._head(state)
        first, second = answers
        return (logits[:, first] - logits[:, second]).float()


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    shortest = min(len(first), len(second))
    for i in range(shortest):
        if first[i] != second[i]:
            return i
    return shortest
