"""What a backbone is: a model that turns images and texts into features, and nothing else.

A backbone never asks which method is using it. It offers representations (`Reads`) and says what
they are; adapters choose.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from vlmtune.config import Configured
from vlmtune.types import Features, Reads


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
    """

    embed_dim: int
    image_width: int
    text_width: int
    image_tokens: int
    text_special: tuple[int, int]
    logit_scale: float

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of weights and preprocessing: equal digests give equal features."""

    @abstractmethod
    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Turns an RGB image into pixel values. Must be picklable for worker processes."""

    @abstractmethod
    def encode_image(self, pixels: Float[Tensor, "n 3 height width"], reads: Reads) -> Features:
        """Encodes preprocessed images. Gradients flow unless `reads.frozen`."""

    @abstractmethod
    def encode_text(self, texts: Sequence[str], reads: Reads) -> Features:
        """Tokenizes and encodes captions; tokens are trimmed to the longest of them.

        Raises:
            UserError: A caption has no tokens between its special ones.
        """

    def fits(self, reads: Reads, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        del reads, modality
        return None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device
