"""Merges LoRA layers that a weights file of open_clip keeps next to the weights.

In: a state dict of FSC-CLIP's layout. Out: only the weights.
"""

import re
import warnings
from pathlib import Path

from torch import Tensor

from vlmtune.storage.files import reading

DOWN = "lora_A"  # in the names of the matrices that map to r numbers
PACKED = f"in_proj_weight_{DOWN}"  # how this layout names the update of queries, keys and values
ENDING = re.compile(rf"(?:_proj_weight_|\.){DOWN}$")


def merged_lora(state: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    r"""Adds each update to its weight, $W + \frac{1}{r} B A$, and leaves the updates out.

    Of a convolution with a kernel of k x k, $A$ is (r k, in k) and $B$ is (out k, r k). The rank r
    is that of the file; the factor of LoRA is 1, as in the code that writes such files, which does
    not store it. Other layouts stay as they are.

    Source: github.com/ytaek-oh/fsc-clip, commit 604015d, `lora_layers.py` and `patch.py`: its
    training with `--lora-rank` saves the weights with these layers next to them.

    Example:
        >>> import torch
        >>> one, two = torch.ones(1, 2), torch.ones(6, 1)
        >>> state = {"a.in_proj_weight": torch.zeros(6, 2)}
        >>> state |= {"a.in_proj_weight_lora_A": one, "a.in_proj_weight_lora_B": two}
        >>> with warnings.catch_warnings(action="ignore"):
        ...     merged = merged_lora(state, Path("a.pt"))
        >>> [(name, weight.unique()) for name, weight in merged.items()]
        [('a.in_proj_weight', tensor([1.]))]
    """
    if not any(name.endswith(PACKED) for name in state):
        return state
    downs = [name for name in state if ENDING.search(name)]
    merged = {}
    for name, value in state.items():
        if ".lora_" not in name and "_proj_weight_lora_" not in name:
            merged[name] = value
    ranks = set()
    for down in downs:
        # `x.in_proj_weight_lora_A` belongs to `x.in_proj_weight`, `x.lora_A` to `x.weight`.
        stem = down.removesuffix(DOWN)
        up = f"{stem}lora_B"
        weight = f"{stem}weight" if stem.endswith(".") else stem.removesuffix("_")
        with reading(file, f"{weight} and {up} that fit {down}", "save the whole state dict again"):
            whole = state[weight].float()
            a = state[down].float()
            b = state[up].float()
            # Matrices of a convolution have a row, or a column, for each place of the kernel.
            kernel = whole.shape[-1] if whole.ndim == 4 else 1
            rank = a.shape[0] // kernel
            update = (b @ a).view(whole.shape)
            merged[weight] = whole + update / rank
        ranks.add(rank)
    warnings.warn(
        f"{file.name} keeps LoRA apart: {len(downs)} updates of rank "
        f"{', '.join(map(str, sorted(ranks)))} are merged with alpha 1, as in FSC-CLIP's code",
        stacklevel=2,
    )
    return merged
