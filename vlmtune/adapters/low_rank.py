"""Low-rank updates of weight matrices, including packed ones that hold several projections.

In: transformer blocks of open_clip, timm or transformers. Out: their weights and updates of them.
Never: the weights themselves, which do not change.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

PACKED = ("query", "key", "value")  # in the order of `nn.MultiheadAttention`'s packed weight
NAMES = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
NAMES |= {name: name for name in PACKED}


class LowRank(nn.Module):
    r"""The parametrisation $W + \frac{\alpha}{r} B A$ of a weight matrix, or of blocks of its rows.

    $A$ (r x in) starts as in `nn.Linear`, $B$ (rows x r) as zero. A packed weight such as
    `in_proj_weight` has one pair for each chosen projection.
    """

    index: Int[Tensor, "chosen"]

    def __init__(
        self,
        weight: Float[Tensor, "out width"],
        parts: int,
        chosen: Sequence[int],
        rank: int,
        alpha: float,
        dropout: float,
    ) -> None:
        super().__init__()
        rows = weight.shape[0] // parts
        width = weight.shape[1]
        self.parts = parts
        self.chosen = tuple(chosen)
        self.dropout = dropout
        self.scale = alpha / rank
        options = {"device": weight.device, "dtype": torch.float32}
        count = len(self.chosen)
        down = torch.empty(count, rank, width, **options)
        up = torch.zeros(count, rows, rank, **options)
        # Moves with the weights, so that no step copies it to a GPU.
        index = torch.tensor(self.chosen, device=weight.device)
        self.register_buffer("index", index, persistent=False)
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(up)
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))

    def update(self) -> Float[Tensor, "out width"]:
        """The term added to the weight."""
        down = self.down
        if self.dropout and self.training:
            # One mask a step, not one a token: the update stays a matrix.
            columns = torch.ones_like(down[:, :1])
            down = down * dropout(columns, self.dropout)
        updates = self.scale * self.up @ down
        if len(self.chosen) < self.parts:
            # Projections that were not chosen get no update.
            parts = updates.new_zeros(self.parts, *updates.shape[1:])
            updates = parts.index_add(0, self.index, updates)
        return updates.flatten(0, 1)

    def forward(self, weight: Float[Tensor, "out width"]) -> Float[Tensor, "out width"]:
        """The updated weight, in the type of the original."""
        return weight + self.update().to(weight.dtype)


def projections(
    block: nn.Module, targets: Sequence[str]
) -> Iterator[tuple[nn.Module, str, int, list[int]]]:
    """The weight matrices of a transformer block that belong to `targets`.

    Reads the names that open_clip, timm and transformers use.

    Yields:
        The module, the name of its weight, its number of projections, and the matching ones.
    """
    modules = dict(block.named_modules())
    # The block itself has no path, and its other layers would all be inside it.
    attentions = []
    for path, module in modules.items():
        if path and _attends(path, module):
            attentions.append(path)
    for path, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            name = "in_proj_weight"
            held = PACKED
        elif isinstance(module, nn.Linear):
            name = "weight"
            inside = any(path.startswith(f"{attention}.") for attention in attentions)
            held = _projections(path, inside)
        else:
            continue
        # A packed weight holds several projections, and some of them may be targets.
        matching = [part for part, target in enumerate(held) if target in targets]
        if matching:
            yield module, name, len(held), matching


def _attends(path: str, module: nn.Module) -> bool:
    """Whether a module of a block is an attention layer, by its name or its class."""
    name = path.rpartition(".")[2]
    names = f"{name} {type(module).__name__}".lower()
    return "attn" in names or "attention" in names


def _projections(path: str, attends: bool) -> tuple[str, ...]:
    """The projections that the linear layer at `path` of a block holds, in order.

    Example:
        >>> _projections("attn.qkv", True), _projections("mlp.fc1", False)
        (('query', 'key', 'value'), ('mlp',))
    """
    last = path.rpartition(".")[2]
    if last == "qkv":
        return PACKED
    if last in NAMES:
        return (NAMES[last],)
    return ("out",) if attends else ("mlp",)
