"""What towers of every library share: building, checking and running states.

In: tokens, masks and towers. Out: states and features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmtune.backbones.base import Fusion, TextTower, Tower
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pooled, Tokens, send

States = Float[Tensor, "n t w"]
Mask = Bool[Tensor, "n t"]
"""True where a token is real; padding is False."""


def no_such_layer(spec: FeatureSpec, layers: int) -> str | None:
    """Returns why a tower of `layers` blocks has no such layer, or None if it has.

    Example:
        >>> no_such_layer(FeatureSpec("tokens", -4), 3)
        'it has 3 layers: choose one of -3 to -1'
        >>> no_such_layer(FeatureSpec("state", -4), 3) is None
        True
    """
    if spec.kind not in ("tokens", "state"):
        return None
    lowest = -layers - (spec.kind == "state")
    if lowest <= spec.layer <= -1:
        return None
    return f"it has {layers} layers: choose one of {lowest} to -1"


def fits_fusion_alone(fusion: Fusion, spec: FeatureSpec, modality: str) -> str | None:
    """Returns why a model without towers has no such features, or None if its fusion reads them."""
    if spec.kind == "pooled":
        return "it embeds no image and no caption alone"
    wanted = fusion.image_input if modality == "image" else fusion.text_input
    same_layer = spec.kind == "words" or spec.layer == wanted.layer  # words have no layer
    if spec.kind == wanted.kind and same_layer:
        return None
    return f"it has no layers of one modality: read {wanted.kind} of layer {wanted.layer}"


def gradients(spec: FeatureSpec) -> torch.set_grad_enabled:
    """A block with gradients, unless features of `spec` are frozen or gradients are off already."""
    wanted = torch.is_grad_enabled() and not spec.frozen
    return torch.set_grad_enabled(wanted)


def state_after(tower: Tower, state: Tokens, layer: int) -> Tokens:
    """Runs the first block's input up to `layer`, counted from the end as in `FeatureSpec`."""
    return tower.run(state, 0, tower.layers + 1 + layer)


def encode_words(tower: TextTower, words: Tokens, spec: FeatureSpec) -> Features:
    """Encodes captions whose words are embedded; only the blocks up to `spec.layer` run."""
    if spec.kind == "words":
        return words
    # Blocks after the wanted layer do not run.
    start = tower.start(words)
    if spec.kind == "pooled":
        last = state_after(tower, start, -1)
        return Pooled(tower.finish(last))
    state = state_after(tower, start, spec.layer)
    if spec.kind == "state":
        return state
    if spec.layer == -1:
        state = tower.norm(state)
    # A tower may have filled captions up; its states are then longer than the words.
    length = words.mask.shape[1]
    return words.masked(state.values[:, :length])


def embed_words(embedding: nn.Embedding, ids: Int[Tensor, "n t"], mask: Mask) -> Tokens:
    """Returns the embeddings of token ids, on the device of the table."""
    # Tokenizers give ids on the CPU, where lengths need no wait for a GPU.
    lengths = mask.sum(dim=1).cpu()
    device = embedding.weight.device
    ids = send(ids, device)
    mask = send(mask, device)
    words = masked(embedding(ids), mask)
    return replace(words, ids=ids, noted_lengths=lengths)


def unmasked(tokens: States) -> Tokens:
    """Tokens that are all real, in float32."""
    return Tokens.full(tokens.float())


def masked(tokens: States, mask: Mask) -> Tokens:
    """Tokens in float32, set to zero where `mask` is False."""
    return Tokens(tokens, mask).masked(tokens)


def last_real(tokens: States, mask: Mask) -> Float[Tensor, "n w"]:
    """The token at the last real position of each row: the end token of a caption."""
    row = torch.arange(len(tokens), device=tokens.device)
    last = mask.sum(dim=1) - 1
    return tokens[row, last]


def check_words(texts: Sequence[str], mask: Mask, special: int) -> None:
    """Raises a `UserError` if a caption is blank or has no tokens besides its `special` ones."""
    counts = mask.sum(dim=1).tolist()
    for i, text in enumerate(texts):
        # Some tokenizers have tokens for blanks.
        if counts[i] <= special or not text.strip():
            raise UserError(
                f"expected captions with words, got {text!r} (number {i} of {len(texts)}): remove "
                "it, or give it words"
            )


def too_long(
    texts: Sequence[str], positions: int, mask: Callable[[list[str], int], Mask]
) -> list[str]:
    """Returns the captions of more than `positions` tokens, special ones included.

    `mask` gives the mask of the tokens of captions that are cut to a length.
    """
    # A token has at least one byte, besides two special ones and a blank before the first word.
    perhaps = [text for text in texts if len(text.encode()) + 3 > positions]
    if not perhaps:
        return []
    longer = mask(perhaps, positions + 1).sum(dim=1)
    is_full = longer >= positions
    full = list(compress(perhaps, is_full.tolist()))
    if not full:
        return []
    # With room for one more, a caption that was cut gets longer. Its length alone does not tell:
    # without its end token, which some tokenizers strip, it never fills all positions.
    shorter = mask(full, positions).sum(dim=1)
    is_cut = longer[is_full] > shorter
    return list(compress(full, is_cut.tolist()))


def padded(words: Tokens, pad: Float[Tensor, "w"], positions: int) -> Tokens:
    """Fills words up to `positions` with the embedding of the padding token."""
    pad = pad.to(words.values.dtype)
    real = words.mask[:, :, None]
    tokens = torch.where(real, words.values, pad)
    rows, length, _ = tokens.shape
    rest = pad.expand(rows, positions - length, -1)
    return unmasked(torch.cat([tokens, rest], dim=1))


def parameters_of(*owners: nn.Module | nn.Parameter | None) -> list[nn.Parameter]:
    """The parameters of modules, and parameters themselves; None has none."""
    # Names do not matter here: optimizers and freezing take parameters.
    parameters: list[nn.Parameter] = []
    for owner in owners:
        if isinstance(owner, nn.Parameter):
            parameters.append(owner)
        elif isinstance(owner, nn.Module):
            parameters.extend(owner.parameters())
    return parameters


def repeated(tokens: Tokens, rows: int) -> Tokens:
    """Lets a single row stand for all, without memory; tokens of as many rows stay as they are."""
    return tokens.map(lambda tensor: tensor.expand(rows, *tensor.shape[1:]))


def side_by_side(first: Tokens, second: Tokens) -> Tokens:
    """Puts the tokens of two sequences one after the other; a single row stands for all."""
    rows = max(len(first), len(second))
    first = repeated(first, rows)
    second = repeated(second, rows)
    values = torch.cat([first.values, second.values], dim=1)
    mask = torch.cat([first.mask, second.mask], dim=1)
    return Tokens(values, mask)
