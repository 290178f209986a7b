"""What adapters share that work inside a backbone's towers: finding them and thawing them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.adapters.base import TOWERS
from vlmtune.backbones.base import Backbone, ImageTower, TextTower, Tower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Tokens


def image_tower(backbone: Backbone) -> ImageTower:
    """Returns the image tower.

    Raises:
        UserError: It cannot be had block by block.
    """
    if backbone.image_tower is None:
        raise _without(backbone, "image")
    return backbone.image_tower


def text_tower(backbone: Backbone) -> TextTower:
    """Returns the text tower.

    Raises:
        UserError: It cannot be had block by block.
    """
    if backbone.text_tower is None:
        raise _without(backbone, "text")
    return backbone.text_tower


def _without(backbone: Backbone, modality: Literal["image", "text"]) -> UserError:
    reasons = (backbone.fits(FeatureSpec(kind), modality) for kind in ("state", "pooled"))
    reason = next(filter(None, reasons), "it has no such tower")
    return UserError(
        f"expected a backbone whose {modality} tower runs block by block, got "
        f"{type(backbone).__name__} ({reason}): choose {TOWERS}"
    )


def after_last_block(tower: Tower, state: Tokens, count: int) -> Tokens:
    """Runs the last `count` blocks on the state before them."""
    return tower.run(state, tower.layers - count, tower.layers)


def each_token(tower: Tower, tokens: Float[Tensor, "n w"], special: int) -> Float[Tensor, "n d"]:
    """Embeds single tokens of the last block: what `finish` gives where all tokens are that one.

    For CLIP this is the final norm and the projection of each token. For attentional pooling
    (SigLIP) it is the pooling of that token alone.

    Args:
        tower: The tower.
        tokens: States after the last block.
        special: How many leading positions of a state are no patches.
    """
    rows = tokens[:, None].expand(-1, special + 1, -1)  # one patch, for those that pool patches
    return tower.finish(Tokens.full(rows))


def needed(
    embed: Callable[[], Float[Tensor, "n d"]], parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Returns those of `parameters` that the embeddings `embed` makes depend on.

    A model may hold weights that no embedding uses, such as heads of its pre-training. Training
    them would stop `DistributedDataParallel`, which waits for a gradient of each.
    """
    asked = list({id(parameter): parameter for parameter in parameters}.values())
    before = [parameter.requires_grad for parameter in asked]
    try:
        for parameter in asked:
            parameter.requires_grad_()
        with torch.enable_grad():
            gradients = torch.autograd.grad(embed().sum(), asked, allow_unused=True)
    finally:
        for parameter, trained in zip(asked, before, strict=True):
            parameter.requires_grad_(trained)
    return [p for p, gradient in zip(asked, gradients, strict=True) if gradient is not None]


def used_by(
    tower: Tower, count: int, length: int, parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Returns those of `parameters` that the last `count` blocks and the end of a tower use.

    Blocks may hold more, such as the cross-attention of a text tower that a fusion shares.

    Args:
        tower: The tower.
        count: How many blocks.
        length: How many positions its states have.
        parameters: What to choose from.
    """
    asked = list(parameters)
    tokens = torch.zeros(1, length, tower.width, device=asked[0].device)
    state = Tokens.full(tokens)
    return needed(lambda: tower.finish(after_last_block(tower, state, count)), asked)


def length_of(tower: Tower, backbone: Backbone) -> int:
    """How many positions the longest state of a tower has."""
    if isinstance(tower, ImageTower):
        return tower.special + backbone.image_tokens
    assert isinstance(tower, TextTower)
    return tower.positions


def thaw(backbone: Backbone, parameters: Sequence[nn.Parameter]) -> None:
    """Makes weights of a backbone trainable.

    Raises:
        UserError: One is not in 32 bits.
    """
    keep_fingerprint(backbone)
    types = {parameter.dtype for parameter in parameters} - {torch.float32}
    if types:
        raise UserError(
            f"expected float32 weights to fine-tune, got {types.pop()}, in which small steps are "
            "lost: set the backbone's precision to fp32 (the trainer's may be bf16-mixed)"
        )
    for parameter in parameters:
        parameter.requires_grad_()


def keep_fingerprint(backbone: Backbone) -> str:
    """Has the backbone name its weights before they change; it keeps that name."""
    return backbone.fingerprint


def check_decay(decay: float | None) -> None:
    """Raises a `UserError` where `decay` is not in (0, 1]."""
    if decay is not None and not 0 < decay <= 1:
        raise UserError(f"expected a decay in (0, 1], got {decay}: correct it or leave it out")


def decayed(
    tower: Tower, parameters: Iterable[nn.Parameter], decay: float
) -> list[tuple[nn.Parameter, float]]:
    r"""Factors on learning rates that fall from the top of a tower to its bottom.

    $\gamma^{L - l}$ for block l = 0, ..., L - 1, 1 for what follows the blocks and
    $\gamma^{L + 1}$ for the embeddings before them, $\gamma$ being `decay`.

    Source: Clark et al. 2020 (ELECTRA), section A; Bao et al. 2022 (BEiT), section A.
    """
    place = {
        id(parameter): tower.layers - number
        for number, block in enumerate(tower.blocks)
        for parameter in block.parameters()
    } | {id(parameter): 0 for parameter in tower.tail}
    embeddings = tower.layers + 1
    return [(p, decay ** place.get(id(p), embeddings)) for p in parameters]
