"""ViLT with its retrieval head: one transformer over patches and words.

In: images and captions. Out: a score of each pair.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.nn.utils.rnn import pad_sequence
from transformers import ViltForImageAndTextRetrieval
from typing_extensions import override

from vlmtune.backbones.base import Abilities, Fusion
from vlmtune.backbones.hf.backbone import HFBackbone, Preprocess, check_steps, longest_side
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import HFTokenizer, hide_padding, through
from vlmtune.backbones.staging import (
    embed_words,
    fits_fusion_alone,
    gradients,
    masked,
    parameters_of,
    side_by_side,
)
from vlmtune.types import FeatureSpec, Pixels, Tokens

OUTSIDE = -100.0
"""Value of pixels outside an image; no normalised pixel reaches it, and bfloat16 holds it."""


class Vilt(HFBackbone):
    """ViLT (Kim et al. 2021, arXiv 2102.03334) as `transformers.ViltForImageAndTextRetrieval`.

    It has no tower for either modality and so no embeddings and no ITC. Image features are the
    embedded patches, text features the words; all blocks belong to the fusion and run once per
    pair. The score is the one output of the retrieval head. ViLT is fine-tuned for retrieval with a
    softmax over the captions of an image, so the score ranks captions: log-odds up to a term that
    depends on the image.

    Images keep their shape, so they differ in patches. Pixels go into a square that holds every
    shape, and pixels outside an image are masked. All patches are used, in their order; the library
    samples `max_image_length` of them at random if a config says so. Arguments are those of
    `HFBackbone`.
    """

    kind = ViltForImageAndTextRetrieval
    abilities = Abilities(matching=True)
    attention = "eager"  # the only one the library has for ViLT
    images_differ = True

    @override
    def preprocessing(self, loaded: Loaded, model: str) -> Preprocess:
        processor = loaded.processor
        check_steps(processor, ("do_resize", "do_pad"), model)
        self._square = SquarePreprocess(processor)
        return self._square

    @override
    def assemble(self, loaded: Loaded) -> None:
        texts = self.model.vilt.embeddings.text_embeddings
        self._tokenizer = HFTokenizer(loaded.tokenizer, texts.position_embeddings.num_embeddings)
        self.fusion = self._fusion = ViltFusion(self.model, self._dtype)

    @override
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        self.embed_dim = self.image_width = self.text_width = self.model.config.hidden_size
        self._patches(pixels)
        patch = self.model.config.patch_size
        # The patches of the largest image.
        rows = self._square.shortest // patch
        columns = self._square.side // patch
        self.image_tokens = rows * columns
        self.text_special = self._tokenizer.special
        self.logit_scale = 1.0

    @override
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Tokens:
        self.check_fits(spec, "image")
        with gradients(spec):
            return self._patches(pixels.to(self.device))

    @override
    def encode_text(self, texts: Sequence[str], spec: FeatureSpec) -> Tokens:
        self.check_fits(spec, "text")
        table = self.model.vilt.embeddings.text_embeddings.word_embeddings
        ids, mask = self._tokenizer(texts)
        with gradients(spec):
            return embed_words(table, ids, mask)

    @override
    def too_long(self, texts: Sequence[str]) -> list[str]:
        return self._tokenizer.too_long(texts)

    @override
    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        return fits_fusion_alone(self._fusion, spec, modality)

    def _patches(self, pixels: Pixels) -> Tokens:
        """Patches of each image after its class token, with positions and modality."""
        embeddings = self.model.vilt.embeddings
        outside = pixels == OUTSIDE
        sizes = self._sizes(outside)
        pixels = pixels.masked_fill(outside, 0.0).to(self._dtype)
        grid = embeddings.patch_embeddings(pixels)  # n x w x rows x columns of the square
        class_position = embeddings.position_embeddings[0, :1]
        class_token = embeddings.cls_token[0] + class_position
        # Images of one shape share their positions, which take longer to resample than to add.
        positions: dict[tuple[int, int], Tensor] = {}
        sequences = []
        for image, (rows, columns) in zip(grid, sizes.tolist(), strict=True):
            shape = (rows, columns)
            if shape not in positions:
                positions[shape] = self._positions(shape)
            patches = image[:, :rows, :columns].flatten(1).T
            patches = patches + positions[shape]
            sequences.append(torch.cat([class_token, patches]))
        # Images differ in patches, so shorter sequences end in padding.
        tokens = pad_sequence(sequences, batch_first=True)
        tokens = embeddings.dropout(tokens)
        lengths = 1 + sizes.prod(dim=1)
        index = torch.arange(tokens.shape[1], device=tokens.device)
        mask = index < lengths[:, None]
        modality = embeddings.token_type_embeddings.weight[1]
        return masked(tokens + modality, mask)

    def _sizes(self, outside: Bool[Tensor, "n 3 height width"]) -> Int[Tensor, "n 2"]:
        """Rows and columns of whole patches of each image, which lies at the top left."""
        inside = ~outside[:, 0]
        # The first column and the first row cross every image.
        first_column = inside[:, :, 0]
        first_row = inside[:, 0]
        heights = first_column.sum(dim=1)
        widths = first_row.sum(dim=1)
        pixels = torch.stack([heights, widths], dim=1)
        return pixels // self.model.config.patch_size

    def _positions(self, size: tuple[int, int]) -> Float[Tensor, "t w"]:
        """Positions of patches, resampled to an image's rows and columns."""
        config = self.model.config
        side = config.image_size // config.patch_size
        # Without the row of the class token.
        table = self.model.vilt.embeddings.position_embeddings[:, 1:]
        grid = table.transpose(1, 2)
        grid = grid.unflatten(2, (side, side))
        # As the library does, or scores would differ from it.
        resampled = interpolate(grid, size=size, mode="bilinear", align_corners=True)
        return resampled[0].flatten(1).T


class ViltFusion(Fusion):
    """All of ViLT's blocks, with pooler and retrieval head."""

    image_input = FeatureSpec("state", -1)
    text_input = FeatureSpec("words")

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._vilt = model.vilt
        self._head = model.rank_output
        self._dtype = dtype
        self.blocks = list(self._vilt.encoder.layer)
        self.tail = parameters_of(self._vilt.layernorm, self._vilt.pooler, self._head)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        embeddings = self._vilt.embeddings
        texts = embeddings.text_embeddings
        tokens = texts(inputs_embeds=text.values.to(self._dtype))
        modality = embeddings.token_type_embeddings.weight[0]
        return text.masked(tokens + modality)

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        logits = self._head(self.cls_outputs(image, text))
        return logits[:, 0].float()

    @override
    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        joined = side_by_side(text, image)
        hidden = hide_padding(joined.mask, self._dtype)
        tokens = joined.values.to(self._dtype)
        tokens = through(self.blocks, tokens, hidden)
        normed = self._vilt.layernorm(tokens)
        return self._vilt.pooler(normed)


class SquarePreprocess(Preprocess):
    """ViLT's image processor, into a square that holds every shape."""

    def __init__(self, processor: Any) -> None:
        super().__init__(processor)
        divisor = processor.size_divisor
        self.side = longest_side(processor) // divisor * divisor
        shortest = processor.size["shortest_edge"] // divisor * divisor
        self.shortest = min(self.side, shortest)

    @override
    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        pixels = super().__call__(image)
        _, height, width = pixels.shape
        # Shapes differ within a batch, and a batch is one tensor.
        square = pixels.new_full((3, self.side, self.side), OUTSIDE)
        square[:, :height, :width] = pixels
        return square
