"""LoRA as the folder that `peft.PeftModel.from_pretrained` puts onto the model of its library.

In: a backbone with low-rank updates. Out: tensors and configuration under PEFT's names. Never: an
update that PEFT would compute otherwise; one is an error.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.lora import LoRA
from vlmtune.adapters.low_rank import LowRank
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.backbone import HFBackbone
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.errors import UserError

# Options of backbones that the name of a base model cannot state.
OPTIONS = ("peft", "image_size", "max_num_patches", "preprocessing", "context_length")


def peft_files(backbone: Backbone, adapter: Adapter) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the content of `adapter_model.safetensors` and of `adapter_config.json`.

    A weight that packs several projections has one pair of matrices in PEFT, whose rank is the sum
    of theirs. An adapter other than LoRA, a base model that PEFT would load otherwise, and an
    update that PEFT cannot hold, is a `UserError`.
    """
    unfit = _unfit(backbone, adapter)
    if unfit or not isinstance(adapter, LoRA):
        raise UserError(
            f"expected LoRA on a model of its library for peft, got {unfit}, for which PEFT has no "
            "form: leave out --format, or use --merged"
        )
    # PEFT wraps the model of the library, so its names have no prefix of vlmtune.
    network: nn.Module = backbone.get_submodule("model")
    state: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for path, module in network.named_modules():
        packed = isinstance(module, nn.MultiheadAttention)
        if packed and _updates(module.out_proj):
            raise UserError(
                f"expected no target out in {path} for peft, which adds it twice to an attention "
                "of torch: use --merged, or train without that target"
            )
        for update in _updates(module):
            down, up = _packed(update)
            state[f"base_model.model.{path}.lora_A.weight"] = down
            state[f"base_model.model.{path}.lora_B.weight"] = up
            ranks[path] = len(down)
            if packed:
                # PEFT wants an update of the attention's output too, and it is zero.
                output = f"base_model.model.{path}.base_layer.out_proj"
                state[f"{output}.lora_A.weight"] = torch.zeros_like(down)
                state[f"{output}.lora_B.weight"] = up.new_zeros(down.shape[1], len(down))
    # PEFT lists what differs from `r` and `lora_alpha`; the factor alpha / r is the same for all.
    factor = adapter.alpha / adapter.rank
    other_ranks = {}
    other_alphas = {}
    for path, rank in ranks.items():
        if rank != adapter.rank:
            other_ranks[path] = rank
            other_alphas[path] = factor * rank
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(ranks),
        "rank_pattern": other_ranks,
        "inference_mode": True,
        "alpha_pattern": other_alphas,
    }
    source = backbone.init_args
    if isinstance(backbone, OpenClip):
        # As `vlmtune.load` takes it; PEFT reads no name of open_clip.
        names = [source["model"], source["pretrained"]]
        config["base_model_name_or_path"] = ":".join(filter(None, names))
    if isinstance(backbone, HFBackbone):
        # AutoPeftModel makes the base model from these.
        kind = type(network)
        config["auto_mapping"] = {
            "base_model_class": kind.__name__,
            "parent_library": kind.__module__,
        }
        config["base_model_name_or_path"] = source["model"]
        config["revision"] = source.get("revision")
    return state, config


def _unfit(backbone: Backbone, adapter: Adapter) -> str:
    """What PEFT has no form for; "" if it has one for all."""
    if not isinstance(adapter, LoRA):
        return type(adapter).__name__
    network = type(backbone.get_submodule("model"))
    if network.__module__.startswith("vlmtune."):
        return f"{network.__name__}, a class of vlmtune"
    # The base model is loaded from its name alone.
    for option in OPTIONS:
        value = backbone.init_args.get(option)
        if value is not None:
            return f"a backbone with {option} {value}"
    return ""


def _updates(module: nn.Module) -> list[LowRank]:
    """The low-rank updates of the module's own weights."""
    if not parametrize.is_parametrized(module):
        return []
    lists: Any = module.parametrizations
    return [update for stages in lists.values() for update in stages]


def _packed(update: LowRank) -> tuple[Tensor, Tensor]:
    """A (k r x in) and B (out x k r) of an update with k pairs; B has a block for each of them."""
    # PEFT has one pair of matrices a weight, where several projections are packed.
    down = update.down.detach().cpu()
    up = update.up.detach().cpu()
    count, rows, rank = up.shape
    # The block of pair i is in the rows of its part and in the columns of its rank.
    blocks = up.new_zeros(update.parts, rows, count, rank)
    for i, part in enumerate(update.chosen):
        blocks[part, :, i] = up[i]
    packed = blocks.view(update.parts * rows, count * rank)
    return down.flatten(0, 1), packed
