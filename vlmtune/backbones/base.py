"""What a backbone is: a model that turns images and texts into features, and nothing else.

A backbone never asks which method is using it. It offers representations (`FeatureSpec`) and says
what they are; adapters choose.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from vlmtune.config import Configured
from vlmtune.types import Features, FeatureSpec, Tokens


class Tower(ABC):
    """One modality's transformer, block by block: what fine-tuning and prompts work on.

    A plain object and not a module, so that the model's weights keep one name each. States are
    `Tokens`: every position the tower needs, class tokens included.

    Attributes:
        layers: Number of blocks.
        width: w of the states.
    """

    layers: int
    width: int

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""

    @property
    @abstractmethod
    def tail(self) -> Sequence[nn.Parameter]:
        """The parameters used after the last block: final norm, pooling, projection."""

    @abstractmethod
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1` (counted from 0) on a state."""

    @abstractmethod
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """From the state after the last block to embeddings, not normalised."""


class ImageTower(Tower, ABC):
    """A vision transformer.

    Attributes:
        special: Leading positions of a state that are no patches.
    """

    special: int

    @abstractmethod
    def start(self, pixels: Float[Tensor, "n 3 height width"]) -> Tokens:
        """From pixels to what the first block gets."""


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
        """Word embeddings before positions, with ids and mask."""

    @abstractmethod
    def start(self, words: Tokens) -> Tokens:
        """From word embeddings (`tokens` and `mask`) to what the first block gets."""


class Fusion(ABC):
    """The part of a fusion encoder that sees image and text together, with its matching head.

    A plain object and not a module, as towers are. What depends on one modality alone and is not
    read from the towers goes into `prepare_image` and `prepare_text`, once per image and text;
    `match` runs once per pair.

    Attributes:
        image_input: What it reads of images.
        text_input: What it reads of texts.
        reuses_image: True where `match` computes less for a single row of `image`.
    """

    image_input: FeatureSpec
    text_input: FeatureSpec
    reuses_image: bool = False

    def prepare_image(self, image: Tokens) -> Tokens:
        """From what is read of images to what `match` takes, row by row."""
        return image

    def prepare_text(self, text: Tokens) -> Tokens:
        """From what is read of texts to what `match` takes, row by row."""
        return text

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""

    @property
    @abstractmethod
    def tail(self) -> Sequence[nn.Parameter]:
        """The parameters used after the last block: final norm and matching head."""

    @abstractmethod
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """Log-odds that text i is true of image i, for each of P prepared rows.

        A single row of `image` stands for all P.
        """


class Backbone(Configured, nn.Module, ABC):
    """A vision-language model with one tower per modality.

    Attributes:
        embed_dim: d, width of the shared embedding space.
        image_width: w of the image tokens.
        text_width: w of the text tokens.
        image_tokens: t of the images (patches; class tokens are left out).
        text_special: How many special tokens lead and trail each text, e.g. (1, 1) for start and
            end; words lie between.
        logit_scale: Factor on cosines the model was pre-trained with (exponentiated).
        logit_bias: Term added to scaled cosines (sigmoid-trained models), else 0.
        image_tower: The image side block by block, or None where it cannot be had.
        text_tower: The text side block by block, or None where it cannot be had.
        fusion: The part that sees both modalities, or None where there is none.
        no_fusion: Why there is none, where `fusion` is None.
    """

    embed_dim: int
    image_width: int
    text_width: int
    image_tokens: int
    text_special: tuple[int, int]
    logit_scale: float
    logit_bias: float = 0.0
    image_tower: ImageTower | None = None
    text_tower: TextTower | None = None
    fusion: Fusion | None = None
    no_fusion: str = "it is a dual encoder"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of weights and preprocessing: equal digests give equal features."""

    @abstractmethod
    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Turns an RGB image into pixel values. Must be picklable for worker processes."""

    @abstractmethod
    def encode_image(
        self, pixels: Float[Tensor, "n 3 height width"], reads: FeatureSpec
    ) -> Features:
        """Encodes preprocessed images. Gradients flow unless `reads.frozen`."""

    @abstractmethod
    def encode_text(self, texts: Sequence[str], reads: FeatureSpec) -> Features:
        """Tokenizes and encodes captions; tokens are trimmed to the longest of them.

        Raises:
            UserError: A caption has no tokens between its special ones.
        """

    def fits(self, reads: FeatureSpec, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        del reads, modality
        return None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device
