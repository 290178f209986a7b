"""ViLT with its retrieval head: one transformer over patches and words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.rnn import pad_sequence
from transformers import ViltForImageAndTextRetrieval

from vlmtune.backbones.base import Fusion
from vlmtune.backbones.hf_backbone import HFBackbone, Preprocess, longest_side
from vlmtune.backbones.hf_loading import Loaded
from vlmtune.backbones.hf_towers import HFTokenizer, through, unseen
from vlmtune.backbones.staging import checked_length, masked, parameters_of, side_by_side
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Tokens

OUTSIDE = -100.0
"""Value of pixels outside an image; no normalised pixel reaches it, and bfloat16 holds it."""


class Vilt(HFBackbone):
    """ViLT (Kim et al. 2021, arXiv 2102.03334) as `transformers.ViltForImageAndTextRetrieval`.

    It has no tower for either modality and so no embeddings and no ITC. Of images the embedded
    patches are read and stored, of captions the words; all blocks are the fusion's and run once per
    pair. The score is the one output of the retrieval head. ViLT is fine-tuned for retrieval with a
    softmax over the captions scored for an image, so the score ranks them, as log-odds up to a term
    that depends on the image.

    Images keep their shape, so they differ in patches. Pixels are put into a square that holds
    every shape, and what lies outside an image is masked. All patches are used, in their order:
    where a config has a positive `max_image_length` the library draws that many of them at random,
    and this class does not. Arguments are those of `HFBackbone`.
    """

    kind = ViltForImageAndTextRetrieval
    attention = "eager"  # the only one the library has for ViLT

    def preprocessing(self, loaded: Loaded, model: str) -> Preprocess:
        """Makes what turns images into pixel values.

        Raises:
            UserError: The processor does not resize, so that no square holds every image.
        """
        processor = loaded.processor
        if not (processor.do_resize and processor.do_pad):
            raise UserError(
                f"expected an image processor that resizes and pads, got do_resize "
                f"{processor.do_resize} and do_pad {processor.do_pad} in {model}: correct "
                "preprocessor_config.json"
            )
        self._square = SquarePreprocess(processor)
        return self._square

    def assemble(self, loaded: Loaded) -> None:
        """Makes the tokenizer and the fusion."""
        texts = self.model.vilt.embeddings.text_embeddings
        self._tokenizer = HFTokenizer(loaded.tokenizer, texts.position_embeddings.num_embeddings)
        self.fusion = self._fusion = ViltFusion(self.model, self._dtype)

    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        """Sets the sizes; `image_tokens` is the number of patches of the largest image."""
        self.embed_dim = self.image_width = self.text_width = self.model.config.hidden_size
        self._patches(pixels)
        patch = self.model.config.patch_size
        shorter = self._square.shortest // patch
        self.image_tokens = shorter * (self._square.side // patch)
        self.text_special = self._tokenizer.special
        self.logit_scale = 1.0

    def encode_image(self, pixels: Float[Tensor, "n 3 height width"], reads: FeatureSpec) -> Tokens:
        """Embeds the patches of preprocessed images; see the base class."""
        self.must_fit(reads, "image")
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            return self._patches(pixels.to(self.device))

    def encode_text(self, texts: Sequence[str], reads: FeatureSpec) -> Tokens:
        """Embeds the words of captions; see the base class."""
        self.must_fit(reads, "text")
        ids, mask = (x.to(self.device) for x in self._tokenizer(texts))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            table = self.model.vilt.embeddings.text_embeddings.word_embeddings
            words = masked(table(ids), mask)
        return replace(words, ids=ids)

    def fits(self, reads: FeatureSpec, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        if reads.kind == "pooled":
            return "it embeds no image and no caption alone"
        fusion = self._fusion
        wanted = fusion.image_input if modality == "image" else fusion.text_input
        if reads.kind == wanted.kind and (reads.kind == "words" or reads.layer == wanted.layer):
            return None
        return f"it has no layers of one modality: read {wanted.kind} of layer {wanted.layer}"

    def _patches(self, pixels: Float[Tensor, "n 3 height width"]) -> Tokens:
        """Patches of each image after its class token, with positions and modality."""
        embeddings = self.model.vilt.embeddings
        outside = pixels == OUTSIDE
        grid = embeddings.patch_embeddings(pixels.masked_fill(outside, 0.0).to(self._dtype))
        sizes = self._sizes(outside)
        first = embeddings.cls_token[0] + embeddings.position_embeddings[0, :1]
        places: dict[tuple[int, int], Tensor] = {}
        rows = []
        for image, size in zip(grid, map(tuple, sizes.tolist()), strict=True):
            if size not in places:
                places[size] = self._positions(size)
            patches = image[:, : size[0], : size[1]].flatten(1).T
            rows.append(torch.cat([first, patches + places[size]]))
        tokens = embeddings.dropout(pad_sequence(rows, batch_first=True))
        lengths = 1 + sizes.prod(dim=1)
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        return masked(tokens + embeddings.token_type_embeddings.weight[1], mask)

    def _sizes(self, outside: Bool[Tensor, "n 3 height width"]) -> Int[Tensor, "n 2"]:
        """Rows and columns of whole patches of each image, which lies at the top left."""
        inside = ~outside[:, 0]
        pixels = torch.stack([inside[:, :, 0].sum(dim=1), inside[:, 0].sum(dim=1)], dim=1)
        return pixels // self.model.config.patch_size

    def _positions(self, size: tuple[int, int]) -> Float[Tensor, "t w"]:
        """Positions of patches, resampled to an image's rows and columns."""
        table = self.model.vilt.embeddings.position_embeddings[:, 1:]
        side = self.model.config.image_size // self.model.config.patch_size
        grid = table.transpose(1, 2).unflatten(2, (side, side))
        grid = interpolate(grid, size=size, mode="bilinear", align_corners=True)
        return grid[0].flatten(1).T


class ViltFusion(Fusion):
    """All of ViLT's blocks, with pooler and retrieval head.

    Args:
        model: The whole model.
        dtype: Type of the weights, in which it computes.
    """

    image_input, text_input = FeatureSpec("state", -1), FeatureSpec("words")

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._vilt, self._head, self._dtype = model.vilt, model.rank_output, dtype

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self._vilt.encoder.layer)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm, pooler and retrieval head."""
        return parameters_of(self._vilt.layernorm, self._vilt.pooler, self._head)

    def prepare_text(self, text: Tokens) -> Tokens:
        """Adds types, positions and modality to words.

        Raises:
            UserError: There are more words than positions.
        """
        embeddings, texts = self._vilt.embeddings, self._vilt.embeddings.text_embeddings
        words = checked_length(text, texts.position_embeddings.num_embeddings)
        tokens, mask = words.values, words.mask
        tokens = texts(inputs_embeds=tokens.to(self._dtype))
        return masked(tokens + embeddings.token_type_embeddings.weight[0], mask)

    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """The output of the retrieval head."""
        joined = side_by_side(text, image)
        tokens = through(
            self.blocks, joined.values.to(self._dtype), unseen(joined.mask, self._dtype)
        )
        pooled = self._vilt.pooler(self._vilt.layernorm(tokens))
        return self._head(pooled)[:, 0].float()


class SquarePreprocess(Preprocess):
    """ViLT's image processor, into a square that holds every shape it gives.

    Args:
        processor: The library's processor.

    Attributes:
        side: Side of the square, in pixels.
        shortest: Longest shorter side of an image in it.
    """

    def __init__(self, processor: Any) -> None:
        super().__init__(processor)
        divisor = processor.size_divisor
        self.side = longest_side(processor) // divisor * divisor
        self.shortest = min(self.side, processor.size["shortest_edge"] // divisor * divisor)

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Returns the pixel values of an image, at the top left of the square."""
        pixels = super().__call__(image)
        square = pixels.new_full((3, self.side, self.side), OUTSIDE)
        square[:, : pixels.shape[1], : pixels.shape[2]] = pixels
        return square
