"""A CLIP of open_clip as `transformers.CLIPModel`: the same weights under other names.

In: a backbone of open_clip. Out: the model of transformers. Never: one that computes something
else; an architecture without a counterpart is an error.
"""

import contextlib
import re
from typing import Any

import torch
from open_clip.transformer import QuickGELU
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import CLIPConfig, CLIPModel

from vlmtune.backbones.base import ImageTower, TextTower, Tower
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.errors import UserError

# Names of open_clip's vision transformer and, without "visual." or "text.", of its text tower.
NAMES = {
    r"visual\.class_embedding": "vision_model.embeddings.class_embedding",
    r"visual\.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    r"visual\.conv1": "vision_model.embeddings.patch_embedding",
    r"visual\.ln_pre": "vision_model.pre_layrnorm",
    r"visual\.ln_post": "vision_model.post_layernorm",
    r"visual\.proj$": "visual_projection.weight",
    r"visual\.transformer\.resblocks": "vision_model.encoder.layers",
    r"token_embedding": "text_model.embeddings.token_embedding",
    r"positional_embedding": "text_model.embeddings.position_embedding.weight",
    r"ln_final": "text_model.final_layer_norm",
    r"text_projection$": "text_projection.weight",
    r"transformer\.resblocks": "text_model.encoder.layers",
}
IN_BLOCK = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn": "self_attn"}
IN_BLOCK |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
CLOSE = 1e-4  # of embeddings of length 1, in float32


def clip_twin(backbone: OpenClip, tokenizer: Any) -> Any:
    """Returns the model of transformers that computes what a CLIP of open_clip computes.

    It is compared with the backbone on noise before it is returned. Only a ViT with a class token
    and CLIP's text tower, with GELU or QuickGELU, has one; another backbone raises `UserError`.
    """
    state: dict[str, Tensor] = {}
    for name, value in backbone.model.state_dict().items():
        state |= _renamed(name.removeprefix("text."), value.detach().cpu().float())
    # CLIPModel has no bias; it changes no order of scores.
    state.pop("logit_bias", None)
    twin: Any = None
    different = torch.inf
    # Another architecture fails in one of these ways, as the twin lacks what it has.
    faults = (RuntimeError, AttributeError, TypeError, ValueError, AssertionError)
    with contextlib.suppress(*faults):
        twin = CLIPModel(_config(backbone, tokenizer))
        twin.eval().load_state_dict(state)
        # Names and shapes may fit where the computation does not, as with other poolings.
        different = _difference(backbone, twin)
    if not different < CLOSE:
        raise UserError(
            "expected a CLIP that transformers.CLIPModel computes too (a ViT with class token and "
            "square images, CLIP's text tower, GELU or QuickGELU), got "
            f"{backbone.title}: use --merged without --format, or --format onnx"
        )
    return twin


def _renamed(name: str, value: Tensor) -> dict[str, Tensor]:
    """The names and tensors of transformers for one of open_clip."""
    for pattern, replacement in NAMES.items():
        name, count = re.subn(f"^{pattern}", replacement, name)
        if count:
            break
    if name in ("visual_projection.weight", "text_projection.weight"):
        return {name: value.T.contiguous()}
    for old, new in IN_BLOCK.items():
        name = re.sub(rf"(layers\.\d+\.){re.escape(old)}\.", rf"\g<1>{new}.", name)
    stem, joined, kind = name.partition("in_proj_")
    if not joined:
        return {name: value}
    # One matrix of open_clip is three of transformers: queries, keys and values.
    q, k, v = value.chunk(3)
    return {f"{stem}q_proj.{kind}": q, f"{stem}k_proj.{kind}": k, f"{stem}v_proj.{kind}": v}


def _config(backbone: OpenClip, tokenizer: Any) -> CLIPConfig:
    image = backbone.image_tower
    text = backbone.text_tower
    assert isinstance(image, ImageTower)
    assert isinstance(text, TextTower)
    visual: Any = backbone.model.visual
    side = backbone.blank().shape[-1]
    vision = {"image_size": side, "patch_size": visual.conv1.weight.shape[-1]}
    words = {"vocab_size": text.embedding.num_embeddings, "max_position_embeddings": text.positions}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        words[name] = getattr(tokenizer, name)
    return CLIPConfig(
        vision_config=_tower(image) | vision,
        text_config=_tower(text) | words,
        projection_dim=backbone.embed_dim,
    )


def _tower(tower: Tower) -> dict[str, Any]:
    block: Any = tower.blocks[0]
    # No other activation has a name that CLIPModel knows.
    acts = {nn.GELU: "gelu", QuickGELU: "quick_gelu"}
    return {
        "hidden_size": tower.width,
        "intermediate_size": block.mlp.c_fc.out_features,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": acts.get(type(block.mlp.gelu), "of no name"),
    }


def _difference(backbone: OpenClip, twin: Any) -> float:
    """The largest difference of embeddings, for noise and for random words of two lengths."""
    generator = torch.Generator().manual_seed(0)
    side = twin.config.vision_config.image_size
    pixels = torch.randn(2, 3, side, side, generator=generator)
    text = twin.config.text_config
    shape = (2, text.max_position_embeddings)
    ids = torch.randint(1, text.vocab_size - 3, shape, generator=generator)
    # The first caption is one word and padding, the second fills every position.
    ids[:, 0] = text.bos_token_id
    ids[0, 2] = text.eos_token_id
    ids[0, 3:] = 0
    ids[1, -1] = text.eos_token_id
    network: Any = backbone.model
    with torch.no_grad():
        image = network.encode_image(pixels.to(backbone.device), normalize=True)
        caption = network.encode_text(ids.to(backbone.device), normalize=True)
        twin_image = twin.get_image_features(pixels).pooler_output
        twin_caption = twin.get_text_features(ids).pooler_output
    embeddings = torch.cat([image, caption]).cpu()
    of_twin = normalize(torch.cat([twin_image, twin_caption]), dim=-1)
    return float((embeddings - of_twin).abs().max())
