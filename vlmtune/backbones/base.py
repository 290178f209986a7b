"""What a backbone is: a model that turns images and texts into features.

In: pixels or captions, and a `FeatureSpec`. Out: `Pooled` or `Tokens`.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pixels, Tokens

Ability = Literal["embeddings", "tokens", "image_tower", "text_tower", "matching", "joined"]


class Abilities(NamedTuple):
    """What models of a class can do: True, False, or which checkpoints can.

    Errors advise `BridgeTower with its matching head` where `matching` is "with its matching head".

    Attributes:
        embeddings: An embedding of each image and of each text.
        tokens: Tokens of several layers.
        image_tower: An image tower that runs block by block.
        text_tower: A text tower that runs block by block.
        matching: A matching head.
        joined: A fusion whose blocks read patches and words in one sequence.
    """

    embeddings: bool | str = False
    tokens: bool | str = False
    image_tower: bool | str = False
    text_tower: bool | str = False
    matching: bool | str = False
    joined: bool | str = False


class Tower(ABC):
    """One modality's transformer, block by block, for fine-tuning and prompts.

    It is not a module, so the model's weights keep one name each. States are `Tokens` with every
    position that the tower needs, class tokens included.

    Attributes:
        blocks: The blocks, first to last.
        tail: The parameters used after the last block: final norm, pooling, projection.
        layers: Number of blocks.
        width: w of the states.
    """

    blocks: Sequence[nn.Module]
    tail: Sequence[nn.Parameter]
    layers: int
    width: int

    @abstractmethod
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1` (counted from 0) on a state."""

    @abstractmethod
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """Returns the embeddings, not normalised, of the state after the last block."""


class ImageTower(Tower, ABC):
    """A vision transformer.

    Attributes:
        special: Leading positions of a state that are not patches.
    """

    special: int

    def unprojected(self, state: Tokens) -> Float[Tensor, "n w"] | None:
        """Returns what `finish` projects into the shared space last; None if it projects nothing.

        For CLIP this is the class token after the final norm.
        """
        return None

    @abstractmethod
    def start(self, pixels: Pixels) -> Tokens:
        """Returns the input of the first block."""


class TextTower(Tower, ABC):
    """A text transformer.

    Attributes:
        positions: Longest sequence it takes.
        embedding: The table of word embeddings.
    """

    positions: int
    embedding: nn.Embedding

    @abstractmethod
    def words(self, texts: Sequence[str]) -> Tokens:
        """Returns word embeddings before positions, with ids, special tokens included."""

    @abstractmethod
    def vocabulary(self) -> Mapping[str, int]:
        """Returns the id of each token, as the tokenizer writes it."""

    @abstractmethod
    def start(self, words: Tokens) -> Tokens:
        """Returns the input of the first block; more words than positions are an error."""

    @abstractmethod
    def norm(self, state: Tokens) -> Tokens:
        """Applies the final norm."""


class Fusion(ABC):
    """The part of a fusion encoder that sees image and text together, with its matching head.

    It is not a module, and neither are towers. `prepare_image` and `prepare_text` run once per
    image and once per text, `match` once per pair.

    Attributes:
        blocks: The blocks, first to last.
        tail: The parameters used after the last block: final norm and matching head.
        image_input, text_input: The features it takes.
        width: w of `joined` tokens; 0 if its blocks do not read patches and words in one sequence.
        reuses_image: True if `match` saves work when all pairs share one image.
    """

    blocks: Sequence[nn.Module]
    tail: Sequence[nn.Parameter]
    image_input: FeatureSpec
    text_input: FeatureSpec
    width: int = 0
    reuses_image: bool = False

    def prepare_image(self, image: Tokens) -> Tokens:
        """Computes what needs images only."""
        return image

    def prepare_text(self, text: Tokens) -> Tokens:
        """Computes what needs texts only."""
        return text

    @abstractmethod
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """Returns log-odds that text i is true of image i, for P prepared rows.

        A single row of `image` stands for all P.
        """

    def joined(self, image: Tokens, text: Tokens, left_out: int) -> tuple[Tokens, Tokens]:
        """Returns patches and words of P prepared rows before the last `left_out` blocks."""
        raise NotImplementedError

    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        """Returns what the matching head reads of P prepared rows: the joint [CLS]."""
        raise UserError(
            f"expected a matching head that reads a [CLS] token, got {type(self).__name__}, whose "
            "head does not: probe its image tower, as with --layer patches-1"
        )


class Backbone(Configured, nn.Module, ABC):
    """A vision-language model with one tower per modality.

    Attributes:
        abilities: What models of this class can do, from which errors advise a backbone.
        preprocess: Turns an RGB image into pixel values. Worker processes get it: a bound method
            would carry the weights into each.
        embed_dim: d, width of the shared embedding space.
        image_width: w of the image tokens.
        text_width: w of the text tokens.
        image_tokens: t of the images: patches of the largest image, without class tokens.
        images_differ: Whether images keep their shape, so that they differ in patches: features
            of an image with fewer end in padding.
        text_special: Number of special tokens before and after the words, such as (1, 1).
        logit_scale: Factor on cosines in pre-training (exponentiated).
        logit_bias: Term added to scaled cosines (sigmoid-trained models), else 0.
        image_tower: The image tower, or None if it cannot run block by block.
        text_tower: The text tower, or None if it cannot run block by block.
        fusion: The part that sees both modalities, or None.
        no_fusion: Why `fusion` is None.
        encodes_texts: Whether it encodes texts; without, it has no text sizes and no `logit_scale`.
        labels: What the outputs of its own classifier are called; empty without one.
        tokenize: Makes the tokens of captions in worker processes, for `use_tokens`; None where
            `encode_text` makes them quickly.
        random_weights: Whether the weights are random, not pre-trained.
        weights_file: The `file`, its `sha256` and the `architecture`, if the weights come from a
            single file rather than a published model; else None.
    """

    abilities: ClassVar[Abilities] = Abilities()
    preprocess: Callable[[Image.Image], Float[Tensor, "3 height width"]]
    embed_dim: int
    image_width: int
    text_width: int
    image_tokens: int
    text_special: tuple[int, int]
    logit_scale: float
    logit_bias: float = 0.0
    images_differ: bool = False
    image_tower: ImageTower | None = None
    text_tower: TextTower | None = None
    fusion: Fusion | None = None
    no_fusion: str = "it is a dual encoder"
    encodes_texts: bool = True
    labels: Sequence[str] = ()
    tokenize: Callable[[Sequence[str]], Tensor] | None = None
    random_weights: bool = False
    weights_file: dict[str, str] | None = None

    @property
    def title(self) -> str:
        """The model's name as configs give it, with its weights if they are random or a file's."""
        init_args = self.spec()["init_args"]
        name = str(init_args.get("model", type(self).__name__))
        if self.weights_file is not None:
            return f"{name} ({self.weights_file['file']})"
        return f"{name} (random weights)" if self.random_weights else name

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of weights, preprocessing and tokenizer: equal digests give equal features."""
        raise UserError(f"expected a fingerprint, got none of {type(self).__name__}: define it")

    @cached_property
    def image_grid(self) -> tuple[int, int]:
        """Rows and columns of an image's patches, which are as square as its pixels allow."""
        height, width = self.blank().shape[-2:]
        rows = round(math.sqrt(self.image_tokens * height / width))
        return rows, self.image_tokens // rows

    def blank(self) -> Pixels:
        """Returns the pixels of one black image, where the weights are."""
        picture = Image.new("RGB", (24, 16))
        return self.preprocess(picture)[None].to(self.device)

    def use_tokens(self, texts: Sequence[str], ids: Int[Tensor, "n t"]) -> None:
        """Takes ids that `tokenize` made of texts encoded next; called only where it is set."""

    @abstractmethod
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Features:
        """Encodes preprocessed images. Gradients flow unless `spec.frozen`."""

    @abstractmethod
    def encode_text(self, texts: Sequence[str], spec: FeatureSpec) -> Features:
        """Tokenizes and encodes captions; tokens are trimmed to the longest caption.

        A caption without words is a `UserError`.
        """

    def classify(self, embeddings: Float[Tensor, "n d"]) -> Float[Tensor, "n C"]:
        """Scores the classes `labels` of n images by their pooled features, on the CPU."""
        raise UserError(f"expected a model with a classifier, got {self.title}: choose another")

    def too_long(self, texts: Sequence[str]) -> list[str]:
        """Returns the captions of more tokens than the model reads; their ends are cut off."""
        return []

    def check_words(self, texts: Iterable[str]) -> None:
        """Raises a `UserError` if a caption has a word that a closed vocabulary lacks."""

    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        """Returns why "image" or "text" has no features for `spec`, or None if it has."""
        return None

    def check_fits(self, spec: FeatureSpec, modality: str) -> None:
        """Raises a `UserError` where `spec` does not fit."""
        if reason := self.fits(spec, modality):
            raise UserError(
                f"expected features that the backbone has, got {modality} {spec.kind} of layer "
                f"{spec.layer} ({reason}): choose others"
            )

    def save(self, folder: Path) -> None:
        """Writes the model with its present weights, as its library loads it."""
        raise UserError(
            f"expected a backbone that open_clip or transformers loads, got {type(self).__name__}: "
            "export only the adapter"
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are; some backbones have only buffers."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        first = next(tensors, None)
        return torch.device("cpu") if first is None else first.device
