"""SigLIP 2 in its NaFlex form: images keep their shape and differ in patches.

In: images of any shape, and captions. Out: embeddings, tokens and states, padded to one length.
"""

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from transformers import Siglip2Model
from typing_extensions import override

from vlmtune.backbones.hf.backbone import Preprocess, check_steps
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.siglip import SigLIPFamily
from vlmtune.backbones.hf.towers import HFImageTower, hide_padding, through
from vlmtune.backbones.staging import masked
from vlmtune.types import Pixels, Tokens

Patches = Annotated[int, Ge(1), Le(4096)]  # up to 64 x 64


class NaFlexImageTower(HFImageTower):
    """A vision transformer over patches of images that differ in shape."""

    @override
    def start(self, pixels: Pixels) -> Tokens:
        patches, shapes = from_strips(pixels)
        lengths = shapes.prod(dim=1)
        patches = patches[:, : int(lengths.max())]
        position = torch.arange(patches.shape[1], device=pixels.device)
        mask = position < lengths[:, None]
        # It takes the shapes of images besides their patches.
        embed: Any = self.embed
        return masked(embed(patches, shapes), mask)

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        # Without a mask, attention takes its faster path.
        hidden = None
        if not bool(state.mask.all()):
            hidden = hide_padding(state.mask, self.dtype)
        blocks = self.blocks[first:stop]
        tokens = through(blocks, state.values.to(self.dtype), hidden)
        return state.masked(tokens)

    @override
    def norm(self, state: Tokens) -> Tokens:
        normed = self.final_norm(state.values.to(self.dtype))
        return state.masked(normed)

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        head: Any = self.head
        tokens = self.norm(state).values.to(self.dtype)
        return head(tokens, state.mask).float()


class SigLIP2NaFlex(SigLIPFamily):
    """SigLIP 2 with NaFlex (Tschannen et al. 2025, arXiv 2502.14786, section 2.4.2).

    Computed as in `transformers.Siglip2Model`. An image is resized to at most `max_num_patches`
    patches, its sides are rounded up to whole patches, and so it nearly keeps its shape. Positions
    are resampled to its rows and columns. Tokens and states of an image with fewer patches end in
    padding, to which nothing attends. Texts are read as in `SigLIP`.

    Pixels of an image are a strip: its patches one below the other, after a first square that
    holds its rows and columns of patches.

    Args:
        max_num_patches: Most patches of an image; None for the number in the model's image
            processor (256). More patches show more detail and cost more.
    """

    kind = Siglip2Model
    image_tower_kind = NaFlexImageTower
    images_differ = True

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        max_num_patches: Patches | None = None,
        peft: str | None = None,
    ) -> None:
        self.max_num_patches = max_num_patches
        super().__init__(model, revision, precision, peft=peft)

    @override
    def preprocessing(self, loaded: Loaded, model: str) -> Preprocess:
        processor = loaded.processor
        check_steps(processor, ("do_resize",), model)
        if self.max_num_patches is not None:
            processor.max_num_patches = self.max_num_patches
        return StripPreprocess(processor)

    @override
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        super().measure(pixels)
        # The first square of a strip holds the shape.
        self.image_tokens = pixels.shape[2] // pixels.shape[3] - 1


class StripPreprocess(Preprocess):
    """NaFlex's image processor, into a strip of patches with its rows and columns before them."""

    @override
    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        output = self._processor(images=image, return_tensors="pt")
        return to_strip(output["pixel_values"][0], output["spatial_shapes"][0])


def to_strip(
    patches: Float[Tensor, "t values"], shape: Int[Tensor, "2"]
) -> Float[Tensor, "3 height side"]:
    """Puts square patches one below the other, after one that holds their rows and columns.

    Example:
        >>> strip = to_strip(torch.rand(6, 12), torch.tensor([2, 3]))
        >>> strip.shape, strip[:2, 0, 0].tolist()
        (torch.Size([3, 14, 2]), [2.0, 3.0])
    """
    pixels = patches.shape[1] // 3
    side = round(pixels**0.5)
    # Values of a patch are row by row, each pixel with its three channels.
    strip = patches.view(-1, side, 3).permute(2, 0, 1)
    rows, columns = shape.to(strip)
    head = strip.new_zeros(3, side, side)
    head[0] = rows
    head[1] = columns
    return torch.cat([head, strip], dim=1)


def from_strips(
    strips: Float[Tensor, "n 3 height side"],
) -> tuple[Float[Tensor, "n t values"], Int[Tensor, "n 2"]]:
    """Returns the patches of strips, and the rows and columns of each.

    Example:
        >>> patches, shape = torch.rand(6, 12), torch.tensor([2, 3])
        >>> again, shapes = from_strips(to_strip(patches, shape)[None])
        >>> again[0].equal(patches), shapes.tolist()
        (True, [[2, 3]])
    """
    n, _, height, side = strips.shape
    count = height // side - 1
    pixels = strips[:, :, side:].permute(0, 2, 3, 1)
    shapes = strips[:, :2, 0, 0].long()
    return pixels.reshape(n, count, -1), shapes
