"""A PEFT adapter that was trained elsewhere, added to the weights of its base model.

In: a model of its library, and the folder or hub id of the adapter. Out: the model with the
updates in its weights. Never: an adapter that fits in part, or that computes more than weights.
"""

import warnings
from typing import Any

from torch import nn

from vlmtune.backbones.hub_connection import hub_or_cache
from vlmtune.backbones.weight_checks import check_finite
from vlmtune.config import find_path
from vlmtune.errors import imported
from vlmtune.storage.files import reading


def merged(network: nn.Module, adapter: str) -> Any:
    """Returns the model with the updates of a PEFT adapter (LoRA and its relatives) merged.

    Args:
        network: The base model, which is changed.
        adapter: A folder as PEFT's `save_pretrained` writes it, or a hub id, `org/name` or
            `org/name@revision`.
    """
    peft = imported("peft", f"to read {adapter}", "pip install 'vlmtune[peft]'")
    name, _, revision = adapter.partition("@")
    options = {"revision": revision or None}
    folder = find_path(name)
    if folder is not None:
        name = str(folder)
    fix = "name an adapter such as LoRA, of this base model"
    with reading(adapter, "a PEFT adapter whose updates merge into weights", fix):
        with hub_or_cache(name), warnings.catch_warnings():
            # PEFT only warns of weights that the adapter lacks; the keys are compared below.
            warnings.simplefilter("ignore")
            model = peft.PeftModel.from_pretrained(network, name, **options)
            stored = peft.load_peft_weights(name, device="cpu", **options)
        used = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        if wrong := sorted(used.keys() ^ stored.keys()):
            raise ValueError(f"{len(wrong)} weights that are missing or unused, first {wrong[0]}")
        whole = model.merge_and_unload()
    check_finite(whole.state_dict(), f"get the adapter {adapter} again")
    return whole.eval().requires_grad_(False)
