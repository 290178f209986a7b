"""Checkpoints as training writes them."""

import torch

from vlmtune.adapters.trained_state import trained_state


def checkpoint(path, backbone, adapter, /, **changes):
    specs = {"version": 1, "backbone": backbone.spec(), "fingerprint": backbone.fingerprint}
    specs |= {"adapter": adapter.spec(), **changes}
    torch.save({"state_dict": trained_state(backbone, adapter), "vlmtune": specs}, path)
    return path
