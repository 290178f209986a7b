"""The weights that training changes, of an adapter and its backbone.

In: a backbone and an attached adapter. Out: their trained tensors by name, how many numbers these
hold, or the two with such tensors loaded. Never: frozen weights of the backbone.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import ModuleList

from vlmtune.adapters.base import Adapter
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError, counted


def trained_state(backbone: Backbone, adapter: Adapter) -> dict[str, Tensor]:
    """The state of the adapter and the unfrozen weights of the backbone.

    Keys are `adapter.<name>` and `backbone.<name>`.
    """
    state = {f"adapter.{name}": value for name, value in adapter.state_dict().items()}
    for name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            state[f"backbone.{name}"] = parameter.data
    return state


def trained_values(backbone: Backbone, adapter: Adapter) -> int:
    """How many numbers training changes; the state has frozen ones of the adapter, too."""
    # As one module: a parameter that backbone and adapter have in common counts once.
    whole = ModuleList([backbone, adapter])
    return sum(one.numel() for one in whole.parameters() if one.requires_grad)


def load_trained_state(
    backbone: Backbone, adapter: Adapter, state: Mapping[str, Tensor], source: str
) -> None:
    """Loads a `trained_state` strictly: no name and no shape may differ."""
    current = trained_state(backbone, adapter)
    # Strict: a name too many is a checkpoint of something else.
    wrong = sorted(current.keys() ^ state.keys())
    if not wrong:
        wrong = [name for name in sorted(state) if current[name].shape != state[name].shape]
    if wrong:
        raise UserError(
            f"expected weights of {type(adapter).__name__} on {type(backbone).__name__} in "
            f"{source}, got other names or shapes at {counted(len(wrong), 'place')}, first "
            f"{wrong[0]!r}: use the config the checkpoint was trained with"
        )
    with torch.no_grad():
        for name, value in current.items():
            value.copy_(state[name])
