"""The image side of an open_clip model, block by block if it is a plain vision transformer.

In: preprocessed images. Out: features.
"""

from typing import Any

import torch
from jaxtyping import Float
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.backbones.base import ImageTower
from vlmtune.backbones.staging import no_such_layer, parameters_of, state_after, unmasked
from vlmtune.types import Features, FeatureSpec, Pixels, Pooled, Tokens


class OpenClipImageTower(ImageTower):
    """A vision transformer in an open_clip model."""

    def __init__(self, visual: Any, dtype: torch.dtype) -> None:
        self.visual = visual
        self._dtype = dtype

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        tokens = state.values.to(self._dtype)
        for block in self.blocks[first:stop]:
            tokens = block(tokens)
        return unmasked(tokens)


class NativeImageTower(OpenClipImageTower):
    """open_clip's own vision transformer."""

    special = 1

    def __init__(self, visual: VisionTransformer, dtype: torch.dtype) -> None:
        super().__init__(visual, dtype)
        self.width = int(visual.transformer.width)
        self.blocks = list(visual.transformer.resblocks)
        # CoCa has two poolings, one of them for its decoder.
        pools = (visual.attn_pool, getattr(visual, "attn_pool_contrastive", None))
        self.tail = parameters_of(visual.ln_post, *pools, visual.proj)
        self.layers = len(self.blocks)

    @override
    def start(self, pixels: Pixels) -> Tokens:
        # `_embeds` and `_pool` are the steps of open_clip's own forward pass.
        tokens = self.visual._embeds(pixels.to(self._dtype))
        return unmasked(tokens)

    @override
    def unprojected(self, state: Tokens) -> Float[Tensor, "n w"] | None:
        if self.visual.proj is None:
            return None
        return self._pooled(state).float()

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        pooled = self._pooled(state)
        if self.visual.proj is not None:
            pooled = pooled @ self.visual.proj
        return pooled.float()

    def _pooled(self, state: Tokens) -> Float[Tensor, "n w"]:
        tokens = state.values.to(self._dtype)
        pooled, _ = self.visual._pool(tokens)
        return pooled


class TimmImageTower(OpenClipImageTower):
    """timm's plain vision transformer (`trunk`) with a `head`: SigLIP, SigLIP2 and others."""

    def __init__(self, visual: Any, dtype: torch.dtype) -> None:
        super().__init__(visual, dtype)
        trunk: Any = visual.trunk
        self.width = int(trunk.embed_dim)
        self.special = int(trunk.num_prefix_tokens)
        self.blocks = list(trunk.blocks)
        heads = (trunk.norm, trunk.attn_pool, trunk.fc_norm, trunk.head, visual.head)
        self.tail = parameters_of(*heads)
        self.layers = len(self.blocks)

    @override
    def start(self, pixels: Pixels) -> Tokens:
        # The steps of timm's own forward pass, up to its blocks.
        trunk = self.visual.trunk
        patches = trunk.patch_embed(pixels.to(self._dtype))
        tokens = trunk.patch_drop(trunk._pos_embed(patches))
        return unmasked(trunk.norm_pre(tokens))

    @override
    def unprojected(self, state: Tokens) -> Float[Tensor, "n w"] | None:
        trunk = self.visual.trunk
        if list(self.visual.head.children()):
            return self._pooled(state).float()
        # Else the projection, if there is one, stands in place of timm's classifier.
        if isinstance(trunk.head, nn.Identity):
            return None
        normed = trunk.norm(state.values.to(self._dtype))
        return trunk.forward_head(normed, pre_logits=True).float()

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        return self.visual.head(self._pooled(state)).float()

    def _pooled(self, state: Tokens) -> Float[Tensor, "n w"]:
        trunk = self.visual.trunk
        normed = trunk.norm(state.values.to(self._dtype))
        return trunk.forward_head(normed)


class EvaImageTower(TimmImageTower):
    """timm's vision transformer with rotary positions: Perception Encoder, EVA-02 and others.

    The rotary positions come from the image's grid, so a state needs none of its own.
    """

    @override
    def start(self, pixels: Pixels) -> Tokens:
        trunk = self.visual.trunk
        patches = trunk.patch_embed(pixels.to(self._dtype))
        tokens, _ = trunk._pos_embed(patches)
        return unmasked(trunk.norm_pre(tokens))

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        tokens = state.values.to(self._dtype)
        patches = tokens.shape[1] - self.special
        rotations = self._rotations(patches)
        for block in self.blocks[first:stop]:
            tokens = block(tokens, rope=rotations)
        return unmasked(tokens)

    def _rotations(self, count: int) -> Float[Tensor, "t angles"] | None:
        """Sines and cosines of each patch; tokens after the patches, as prompts, are not turned."""
        rope = self.visual.trunk.rope
        if rope is None:
            return None
        turned = rope.get_embed()[:count]  # a single token may be run, too
        # An angle of 0: sine 0, and below cosine 1.
        still = turned.new_zeros(count - len(turned), turned.shape[1])
        half = still.shape[1] // 2
        still[:, half:] = 1.0
        return torch.cat([turned, still])


class ImageSide:
    """The image features of any open_clip model.

    It is not a module, so the model's weights keep one name each.
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
            # Only a plain transformer has blocks of one width; stages of a pyramid differ, and of
            # them the last alone gives tokens.
            trunk = getattr(self.visual, "trunk", None)
            blocks = getattr(trunk, "blocks", None)
            self.layers = 1 if blocks is None else len(blocks)
        if isinstance(self.tower, NativeImageTower):
            rows, columns = self.visual.grid_size
            self.count = rows * columns  # patches of an image
            self.width = self.tower.width
        else:
            with torch.no_grad():
                _, self.count, self.width = self.tokens(probe, -1).shape

    def fits(self, spec: FeatureSpec) -> str | None:
        """Returns why images have no features for `spec`, or None if they have."""
        if spec.kind == "words":
            return "images have no words"
        if spec.kind == "state" and self.tower is None:
            trunk = getattr(self.visual, "trunk", self.visual)
            return f"its {type(trunk).__name__} image tower is not a plain transformer"
        is_native = isinstance(self.visual, VisionTransformer)
        pools_first = is_native and self.visual.attn_pool is not None
        if spec.kind == "tokens" and spec.layer == -1 and pools_first:
            return "its final norm comes after attentional pooling: choose layer -2"
        return no_such_layer(spec, self.layers)

    def encode(self, pixels: Pixels, spec: FeatureSpec) -> Features:
        """Encodes preprocessed images, with whatever part of the model the features need."""
        if spec.kind == "pooled":
            pooled = first_of(self.model.encode_image(pixels, normalize=False))
            return Pooled(pooled.float())
        if spec.kind == "tokens" or self.tower is None:
            return unmasked(self.tokens(pixels, spec.layer))
        start = self.tower.start(pixels)
        return state_after(self.tower, start, spec.layer)

    def tokens(self, pixels: Pixels, layer: int) -> Float[Tensor, "n t w"]:
        """Patch tokens after block `layer`, without class and register tokens."""
        output = self.visual.forward_intermediates(
            pixels,
            indices=[layer],
            stop_early=True,
            normalize_intermediates=layer == -1,
            intermediates_only=True,
            output_fmt="NCHW",  # the one format that every tower has
        )
        maps = output["image_intermediates"][0]
        return maps.flatten(2).transpose(1, 2)


def image_tower(visual: Any, dtype: torch.dtype) -> OpenClipImageTower | None:
    """Returns an open_clip image tower, or None if it cannot run block by block."""
    if isinstance(visual, VisionTransformer):
        return NativeImageTower(visual, dtype)
    # A subclass may run its blocks differently.
    if isinstance(visual, TimmModel) and type(visual.trunk) is TimmVisionTransformer:
        return TimmImageTower(visual, dtype)
    if isinstance(visual, TimmModel) and plain_eva(visual.trunk):
        return EvaImageTower(visual, dtype)
    return None


def plain_eva(trunk: Any) -> bool:
    """Whether all blocks of timm's Eva see all patches at the same rotary positions."""
    if type(trunk) is not Eva or trunk.patch_drop is not None or trunk.dynamic_img_size:
        return False
    if trunk.rope_mixed:
        return False
    return trunk.rope is None or hasattr(trunk.rope, "feat_shape")


def first_of(output: Any) -> Tensor:
    """The pooled vectors of models that return tokens beside them too."""
    return output[0] if isinstance(output, tuple) else output
