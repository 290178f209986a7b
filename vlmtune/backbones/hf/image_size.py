"""Images of another size than a model of Hugging Face was trained on.

In: a loaded model and a size. Out: the same model with interpolated positions, and an image
processor of that size.
"""

import copy
import math
from typing import Any

import torch
from torch import nn

from vlmtune.backbones.hf.loading import Loaded
from vlmtune.errors import UserError


def resized(loaded: Loaded, image_size: int, model: str) -> Loaded:
    """Returns the model for images of `image_size`; the network itself changes.

    Every edge that the image processor resizes or crops to grows by one factor, so that what a crop
    leaves of an image stays the same. The table of positions is interpolated once (bicubic), to the
    values that the library's `interpolate_pos_encoding` gives in each forward pass. ViLT resamples
    positions for each image and ALIGN has none: of them the image processor alone changes.
    """
    network = loaded.network
    processor = loaded.processor
    tables = {}
    for name, part in network.named_modules():
        if hasattr(part, "interpolate_pos_encoding"):
            tables[name] = part
    configs = [part.config for part in tables.values()] or [network.config]
    patch_sizes = [getattr(config, "patch_size", 1) for config in configs]
    step = math.lcm(*patch_sizes, divisor(processor))
    if image_size < 1 or image_size % step:
        raise UserError(
            f"expected for {model} an image_size that is a multiple of {step}, got {image_size}: "
            "choose one"
        )
    for name, part in tables.items():
        network.set_submodule(name, _stretched(part, image_size))
    return loaded._replace(processor=_processor(processor, image_size, model))


def divisor(processor: Any) -> int:
    """What an image processor cuts both sides down to multiples of; 1 if it does not.

    Files of BLIP name a `size_divisor` that its image processor does not use.
    """
    return processor.size_divisor if hasattr(type(processor), "size_divisor") else 1


def _stretched(old: Any, image_size: int) -> nn.Module:
    """The embeddings of patches, made anew for `image_size` with the old weights."""
    weight = next(old.parameters())
    # Positions are interpolated in float32, whatever the precision of the weights.
    exact = copy.deepcopy(old).float()
    state = exact.state_dict()
    name = next(key for key in state if "position_embedding" in key)
    table = state[name]
    count, width = table.shape[-2:]
    patches = math.isqrt(count) ** 2  # patches are a square number, and a class token may follow
    class_tokens = count - patches
    side = image_size // old.config.patch_size
    shape = (1, side**2 + class_tokens, width)
    # Only the shape of its first argument counts.
    tokens = torch.empty(shape)
    with torch.no_grad():
        positions = exact.interpolate_pos_encoding(tokens, image_size, image_size)
    # Some tables have a leading dimension of 1.
    state[name] = positions.view(shape[-table.ndim :])
    # The module reads its size from the config when it is made.
    old.config.image_size = image_size
    new = type(old)(old.config)
    new.load_state_dict(state)
    new = new.to(weight.dtype).train(old.training)
    return new.requires_grad_(weight.requires_grad)


def _processor(processor: Any, image_size: int, model: str) -> Any:
    """The image processor with every edge scaled so that images have `image_size`."""
    settings = processor.to_dict()
    sizes = {name: settings[name] for name in ("size", "crop_size") if settings.get(name)}
    # The last step decides the size of an image: the crop if there is one, else resizing.
    crops = settings.get("do_center_crop") and "crop_size" in sizes
    decides = "crop_size" if crops else "size"
    deciding = sizes.get(decides, {})
    edges = set(map(int, deciding.values()))
    if len(edges) != 1:
        raise UserError(
            f"expected an image processor of one image size for image_size {image_size}, got "
            f"{sizes} in {model}: leave image_size out"
        )
    factor = image_size / edges.pop()
    for name, size in sizes.items():
        scaled = {edge: round(factor * pixels) for edge, pixels in size.items()}
        settings[name] = scaled
    return type(processor).from_dict(settings)
