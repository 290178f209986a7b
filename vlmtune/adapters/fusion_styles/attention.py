"""Multi-head attention: over whole sequences, and of one query without key and value projections.

In: an `nn.MultiheadAttention` and tokens. Out: attended tokens, its output projection included.
Never: weights of its own.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

States = Float[Tensor, "n t w"]
First = Float[Tensor, "n 1 w"]
"""The first token of each row."""
Leading = Float[Tensor, "n rows w"]
"""The first few tokens of each row."""
Mask = Bool[Tensor, "n t"] | None
"""True where a token is real, and may be attended to; None if all are."""


def masked_softmax(
    logits: Float[Tensor, "*shape"], mask: Bool[Tensor, "*#shape"], dim: int
) -> Float[Tensor, "*shape"]:
    """The softmax over the entries where `mask` is True; 0 elsewhere."""
    masked = logits.masked_fill(~mask, -torch.inf)
    return masked.softmax(dim=dim)


def split_heads(tokens: Float[Tensor, "n t w"], heads: int) -> Float[Tensor, "n heads t part"]:
    """Each head's part of the tokens, with the heads before them, as torch's kernels expect it."""
    parts = tokens.unflatten(2, (heads, -1))
    return parts.transpose(1, 2)


def project(
    attention: nn.MultiheadAttention, tokens: States, first: int = 0, stop: int = 3
) -> Float[Tensor, "n t projected"]:
    """Projects tokens to queries (0), keys (1) and values (2): those from `first` to `stop` - 1."""
    width = attention.embed_dim
    part = slice(first * width, stop * width)
    return linear(tokens, attention.in_proj_weight[part], attention.in_proj_bias[part])


def attend(
    attention: nn.MultiheadAttention, query: Leading, key: States, value: States, mask: Mask
) -> Leading:
    """Multi-head attention of projected queries, keys and values, and the output projection."""
    heads = attention.num_heads
    query = split_heads(query, heads)
    key = split_heads(key, heads)
    value = split_heads(value, heads)
    if mask is not None:
        # One mask for all heads and all queries.
        mask = mask[:, None, None, :]
    dropout = attention.dropout if attention.training else 0.0
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    joined = out.transpose(1, 2).flatten(2)
    return attention.out_proj(joined)


def fold(attention: nn.MultiheadAttention, query: First) -> Float[Tensor, "n heads w"]:
    r"""Takes the key projection into the query: per head, $\tilde q = W_k^\top q / \sqrt{w/h}$.

    $q^\top (W_k x + b_k) = (W_k^\top q)^\top x + q^\top b_k$, and the last term, the same for all
    tokens x, leaves a softmax as it is. So the tokens that are attended to need no projection.
    """
    width = attention.embed_dim
    heads = attention.num_heads
    # (n, heads, width of a head), then through the key projection of each head.
    projected = project(attention, query, 0, 1)[:, 0]
    projected = projected.unflatten(-1, (heads, -1))
    key_weight = attention.in_proj_weight[width : 2 * width]
    key_weight = key_weight.unflatten(0, (heads, -1))
    folded = torch.einsum("nhd,hdw->nhw", projected, key_weight)
    return folded * (width // heads) ** -0.5


def attend_folded(
    attention: nn.MultiheadAttention,
    folded: Float[Tensor, "one_or_n heads w"],
    memory: States,
    mask: Mask,
) -> First:
    r"""Multi-head attention of one folded query, its output projection included.

    $\sum_t a_t (W_v x_t + b_v) = W_v \sum_t a_t x_t + b_v \sum_t a_t$: values are projected once,
    after the sum. With h heads that costs $2 h t w + w^2$ multiplications a row, against
    $2 t w^2$ and more for keys and values of every token.
    """
    logits = memory @ folded.transpose(1, 2)
    if mask is not None:
        padding = ~mask[:, :, None]
        logits = logits.masked_fill(padding, -torch.inf)
    dropout = attention.dropout if attention.training else 0.0
    weights = logits.softmax(dim=1)
    weights = nn.functional.dropout(weights, dropout)
    weights = weights.transpose(1, 2)
    # The part of the packed projections that makes values, by head.
    start = 2 * attention.embed_dim
    heads = attention.num_heads
    value_weight = attention.in_proj_weight[start:].unflatten(0, (heads, -1))
    value_bias = attention.in_proj_bias[start:].unflatten(0, (heads, -1))
    attended = weights @ memory
    value = torch.einsum("nhw,hdw->nhd", attended, value_weight)
    # Dropout leaves weights that do not sum to one.
    sums = weights.sum(dim=2, keepdim=True)
    value = value + sums * value_bias
    joined = value.flatten(1)
    return attention.out_proj(joined)[:, None]
