"""The two towers of an open_clip model, layer by layer.

open_clip gives pooled vectors from `encode_*` and block outputs from `forward_intermediates`, with
a different reach for each kind of tower. Here each kind answers the same questions.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from open_clip.hf_model import HFTextEncoder
from open_clip.transformer import VisionTransformer, text_global_pool
from torch import Tensor, nn


def no_such_layer(layer: int, layers: int) -> str | None:
    """Returns why a tower of `layers` blocks has no block `layer`, or None where it has."""
    if -layers <= layer <= -1:
        return None
    return f"it has {layers} layers: choose one of -{layers} to -1"


class ImageTower:
    """The image side: a native ViT, a timm trunk or a ResNet.

    A plain object and not a module, so that the model's weights keep one name each.

    Args:
        model: The open_clip model.
        probe: One blank preprocessed image, to learn the widths of towers that do not state them.
    """

    def __init__(self, model: nn.Module, probe: Float[Tensor, "1 3 height width"]) -> None:
        self.model = model
        self.visual: Any = model.visual
        self.native = isinstance(self.visual, VisionTransformer)
        if self.native:
            self.layers = len(self.visual.transformer.resblocks)
            self.width = int(self.visual.transformer.width)
            self.tokens_per_image = self.visual.grid_size[0] * self.visual.grid_size[1]
        else:
            # Only a plain transformer has blocks of one width; stages of a pyramid differ.
            self.layers = len(getattr(getattr(self.visual, "trunk", None), "blocks", "1"))
            with torch.no_grad():
                _, self.tokens_per_image, self.width = self.tokens(probe, -1).shape

    def fits(self, layer: int) -> str | None:
        """Returns why the tokens of `layer` cannot be had, or None where they can."""
        if self.native and layer == -1 and self.visual.attn_pool is not None:
            return "its final norm comes after attentional pooling: choose layer -2"
        return no_such_layer(layer, self.layers)

    def pooled(self, pixels: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n d"]:
        """Embeddings, not normalised."""
        return _first(self.model.encode_image(pixels, normalize=False))  # type: ignore[operator]

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


class TextTower:
    """The text side: open_clip's own transformer, or a Hugging Face model (pooled only).

    Args:
        model: The open_clip model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.tower: Any = getattr(model, "text", model)
        self.native = not isinstance(self.tower, HFTextEncoder)
        self.pool_type = getattr(self.tower, "text_pool_type", getattr(self.tower, "pool_type", ""))
        # Without later tokens in sight, a token does not change when padding is cut; a tower that
        # pools at the last position or sees both ways needs its full length.
        self.trims = (
            self.native
            and getattr(self.tower, "attn_mask", None) is not None
            and getattr(self.tower, "cls_emb", None) is None
            and self.pool_type in ("argmax", "eos", "first")
        )
        if self.native:
            self.layers = len(self.tower.transformer.resblocks)
            self.width = int(self.tower.transformer.width)
        else:
            self.layers = 0
            self.width = int(self.tower.config.hidden_size)

    def fits(self, layer: int) -> str | None:
        """Returns why the tokens of `layer` cannot be had, or None where they can."""
        if not self.native:
            return "its text tower is a Hugging Face model that gives pooled vectors only"
        return no_such_layer(layer, self.layers)

    def pooled(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Embeddings, not normalised; `ids` may be trimmed where `trims` is True."""
        if not self.trims:
            return _first(self.model.encode_text(ids, normalize=False))  # type: ignore[operator]
        return self.pool(self.blocks(self.embed(ids)), ids)

    def tokens(self, ids: Int[Tensor, "n t"], layer: int) -> Float[Tensor, "n t w"]:
        """Tokens after block `layer`, the final norm applied where it is the last."""
        if self.trims:
            states = self.blocks(self.embed(ids), layer)
            return self.tower.ln_final(states) if layer == -1 else states
        output = self.tower.forward_intermediates(
            ids,
            indices=[layer],
            stop_early=True,
            normalize_intermediates=layer == -1,
            intermediates_only=True,
            output_fmt="NLC",
        )
        return output["text_intermediates"][0]

    def embed(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n t w"]:
        """Word plus position embeddings of a tower that trims."""
        dtype = self.tower.transformer.get_cast_dtype()
        words = self.tower.token_embedding(ids).to(dtype)
        return words + self.tower.positional_embedding[: ids.shape[1]].to(dtype)

    def blocks(self, states: Float[Tensor, "n t w"], layer: int = -1) -> Float[Tensor, "n t w"]:
        """Runs the blocks of a tower that trims, up to `layer` and no further."""
        length = states.shape[1]
        _, outputs = self.tower.transformer.forward_intermediates(
            states,
            attn_mask=self.tower.attn_mask[:length, :length],
            indices=[layer],
            stop_early=True,
        )
        return outputs[0]

    def pool(self, states: Float[Tensor, "n t w"], ids: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Final norm, pooling and projection of a tower that trims."""
        eos = getattr(self.tower, "text_eos_id", getattr(self.tower, "eos_id", None))
        states = self.tower.ln_final(states)
        pooled = text_global_pool(states, ids, self.pool_type, eos_token_id=eos)
        projection = self.tower.text_projection
        if projection is None:
            return pooled
        return projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection


class Tokenizer:
    """Any open_clip tokenizer, with the length of each caption.

    Args:
        encode: A callable from captions to padded ids.
    """

    def __init__(self, encode: Any) -> None:
        self.encode = encode
        inner = getattr(encode, "tokenizer", None)
        if inner is None:
            self.pad, self.end = 0, int(encode.eot_token_id)
            self.special = frozenset({int(encode.sot_token_id), self.end})
        else:
            end = inner.eos_token_id if inner.eos_token_id is not None else inner.sep_token_id
            self.pad, self.end = inner.pad_token_id, end
            self.special = frozenset(inner.all_special_ids)

    def __call__(self, texts: list[str]) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Returns padded ids and True up to and including the end token."""
        ids = self.encode(texts)
        ends = ids == self.end
        # A tokenizer may strip its end token; the padding then tells the length.
        lengths = torch.where(
            ends.any(dim=1), ends.int().argmax(dim=1) + 1, (ids != self.pad).sum(dim=1)
        )
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]

    def leading_and_trailing(self, word: str) -> tuple[int, int]:
        """How many special tokens stand before and after the words."""
        ids, mask = self([word])
        special = [int(i) in self.special for i in ids[0][mask[0]]]
        words = [i for i, yes in enumerate(special) if not yes]
        return words[0], len(special) - words[-1] - 1


def _first(output: Any) -> Tensor:
    """The pooled vectors, of towers configured to give tokens beside them too."""
    return output[0] if isinstance(output, tuple) else output
