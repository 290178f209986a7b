"""The image side of an open_clip model: block by block where it is a plain vision transformer.

open_clip gives pooled vectors from `encode_image` and block outputs from `forward_intermediates`.
Here a native ViT and timm's ViT (SigLIP) can also be run piece by piece.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from vlmtune.backbones.base import ImageTower
from vlmtune.backbones.staging import no_such_layer, parameters_of, unmasked
from vlmtune.types import FeatureSpec, Tokens


class NativeImageTower(ImageTower):
    """open_clip's own vision transformer.

    Args:
        visual: The tower of the model.
        dtype: Type of its large weights, in which it computes.
    """

    special = 1

    def __init__(self, visual: VisionTransformer, dtype: torch.dtype) -> None:
        self.visual: Any = visual
        self._dtype = dtype
        self.layers = len(self.blocks)
        self.width = int(self.visual.transformer.width)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self.visual.transformer.resblocks)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm, attentional pooling and projection."""
        visual = self.visual
        pools = (visual.attn_pool, getattr(visual, "attn_pool_contrastive", None))
        return parameters_of(visual.ln_post, *pools, visual.proj)

    def start(self, pixels: Float[Tensor, "n 3 height width"]) -> Tokens:
        """Patches, class token, positions and the norm before the blocks."""
        return unmasked(self.visual._embeds(pixels.to(self._dtype)))

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        return unmasked(_through(self.blocks[first:stop], state.values.to(self._dtype)))

    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """Final norm, pooling and projection, in the model's own order."""
        pooled, _ = self.visual._pool(state.values.to(self._dtype))
        return (pooled if self.visual.proj is None else pooled @ self.visual.proj).float()


class TimmImageTower(ImageTower):
    """timm's plain vision transformer with open_clip's head: SigLIP, SigLIP2 and others.

    Args:
        visual: The tower of the model.
        dtype: Type of its weights, in which it computes.
    """

    def __init__(self, visual: TimmModel, dtype: torch.dtype) -> None:
        self.visual: Any = visual
        self._dtype = dtype
        self.layers = len(self.blocks)
        self.width = int(self.visual.trunk.embed_dim)
        self.special = int(self.visual.trunk.num_prefix_tokens)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self.visual.trunk.blocks)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm, attentional pooling and heads."""
        trunk = self.visual.trunk
        return parameters_of(
            trunk.norm, trunk.attn_pool, trunk.fc_norm, trunk.head, self.visual.head
        )

    def start(self, pixels: Float[Tensor, "n 3 height width"]) -> Tokens:
        """Patches, class and register tokens, positions and the norm before the blocks."""
        trunk = self.visual.trunk
        tokens = trunk._pos_embed(trunk.patch_embed(pixels.to(self._dtype)))
        return unmasked(trunk.norm_pre(trunk.patch_drop(tokens)))

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        return unmasked(_through(self.blocks[first:stop], state.values.to(self._dtype)))

    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """Final norm, pooling and heads."""
        trunk = self.visual.trunk
        tokens = trunk.norm(state.values.to(self._dtype))
        return self.visual.head(trunk.forward_head(tokens)).float()


class ImageSide:
    """What can be read of the images of any open_clip model.

    A plain object and not a module, so that the model's weights keep one name each.

    Args:
        model: The open_clip model.
        dtype: Type of its large weights.
        probe: One blank preprocessed image, to learn the widths of towers that do not state them.

    Attributes:
        tower: The tower block by block, or None where it is no plain vision transformer.
        layers: Number of blocks, 1 where only the last can be read.
        width: w of the tokens.
        count: Patches of an image.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, probe: Float[Tensor, "1 3 height width"]
    ) -> None:
        self.model: Any = model
        self.visual: Any = model.visual
        self.tower = image_tower(self.visual, dtype)
        if self.tower is not None:
            self.layers = self.tower.layers
        else:
            # Only a plain transformer has blocks of one width; stages of a pyramid differ.
            self.layers = len(getattr(getattr(self.visual, "trunk", None), "blocks", "1"))
        if isinstance(self.tower, NativeImageTower):
            self.count = self.visual.grid_size[0] * self.visual.grid_size[1]
            self.width = self.tower.width
        else:
            with torch.no_grad():
                _, self.count, self.width = self.tokens(probe, -1).shape

    def fits(self, reads: FeatureSpec) -> str | None:
        """Returns why `reads` cannot be had of images, or None where it can."""
        if reads.kind == "words":
            return "images have no words"
        if reads.kind == "state" and self.tower is None:
            return f"its {type(self._trunk()).__name__} image tower is no plain transformer"
        if reads.kind == "tokens" and reads.layer == -1 and self._norm_follows_pooling():
            return "its final norm comes after attentional pooling: choose layer -2"
        return no_such_layer(reads, self.layers)

    def _trunk(self) -> nn.Module:
        return getattr(self.visual, "trunk", self.visual)

    def _norm_follows_pooling(self) -> bool:
        return isinstance(self.visual, VisionTransformer) and self.visual.attn_pool is not None

    def pooled(self, pixels: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n d"]:
        """Embeddings, not normalised."""
        return first(self.model.encode_image(pixels, normalize=False))

    def tokens(
        self, pixels: Float[Tensor, "n 3 height width"], layer: int
    ) -> Float[Tensor, "n t w"]:
        """Patch tokens after block `layer`, class and register tokens left out."""
        output = self.visual.forward_intermediates(
            pixels,
            indices=[layer],
            stop_early=True,
            normalize_intermediates=layer == -1,
            intermediates_only=True,
            output_fmt="NCHW",  # the one format that every tower has
        )
        return output["image_intermediates"][0].flatten(2).transpose(1, 2)


def image_tower(visual: Any, dtype: torch.dtype) -> NativeImageTower | TimmImageTower | None:
    """Returns an open_clip image tower block by block, or None where it cannot be had."""
    if isinstance(visual, VisionTransformer):
        return NativeImageTower(visual, dtype)
    # A subclass may run its blocks differently.
    if isinstance(visual, TimmModel) and type(visual.trunk) is TimmVisionTransformer:
        return TimmImageTower(visual, dtype)
    return None


def first(output: Any) -> Tensor:
    """The pooled vectors, of towers configured to give tokens beside them too."""
    return output[0] if isinstance(output, tuple) else output


def _through(blocks: Sequence[nn.Module], tokens: Tensor) -> Tensor:
    for block in blocks:
        tokens = block(tokens)
    return tokens
