"""What adapters that work inside a backbone's towers share: finding, running and training them.

In: a backbone. Out: its towers, states, and the parameters to train.
Never: a choice of what to train; adapters make it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.adapters.base import Vectors
from vlmtune.backbones.advice import backbones_with
from vlmtune.backbones.base import Ability, Backbone, Fusion, ImageTower, TextTower, Tower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Tokens

_ATTENTION = ("attn", "self_attn", "attention")  # as libraries call it in a block
TEXT_ONLY = "or train only the text tower with --model.adapter.init_args.image false"


def image_tower(backbone: Backbone, optional: bool = False) -> ImageTower:
    """Returns the image tower; an error says if an adapter has the option to leave it as it is."""
    if backbone.image_tower is None:
        other = ""
        if optional and backbone.text_tower is not None:
            other = f", {TEXT_ONLY}"
        _refuse(backbone, "image", other)
    return backbone.image_tower


def text_tower(backbone: Backbone) -> TextTower:
    """Returns the text tower."""
    if backbone.text_tower is None:
        _refuse(backbone, "text")
    return backbone.text_tower


def tower_of_one_shape(backbone: Backbone) -> ImageTower:
    """Returns the image tower, of a backbone that gives every image the same rows of patches."""
    if backbone.images_differ:
        raise UserError(
            "expected a backbone whose images have one shape, got "
            f"{type(backbone).__name__}, whose images keep theirs: choose "
            f"{backbones_with('image_tower', one_shape=True)}"
        )
    return image_tower(backbone)


def fusion_of(backbone: Backbone, ability: Literal["matching", "joined"]) -> Fusion:
    """Returns the fusion of a backbone, which must have that ability."""
    fusion = backbone.fusion
    if fusion is None or (ability == "joined" and not fusion.width):
        part = "a matching head"
        reason = backbone.no_fusion
        if ability == "joined":
            part = "blocks that read patches and words in one sequence"
            reason = "it has none"
        raise UserError(
            f"expected a backbone with {part}, got {type(backbone).__name__} ({reason}): choose "
            f"{backbones_with(ability)}"
        )
    return fusion


def check_blocks(wanted: int, available: int, option: str) -> None:
    """Raises a `UserError` if an option asks for more blocks than there are."""
    if wanted > available:
        raise UserError(
            f"expected at most {available} blocks for `{option}`, which is all, got {wanted}: "
            f"lower `{option}`"
        )


def _refuse(backbone: Backbone, modality: Literal["image", "text"], other: str = "") -> NoReturn:
    reason = backbone.fits(FeatureSpec("state"), modality)
    reason = reason or backbone.fits(FeatureSpec("pooled"), modality) or "it has no such tower"
    # Backbones whose tower can be run are listed, rather than backbones with embeddings.
    needed: Ability = "image_tower" if modality == "image" else "text_tower"
    advice = backbones_with(needed)
    raise UserError(
        f"expected a backbone whose {modality} tower runs block by block, got "
        f"{type(backbone).__name__} ({reason}): choose {advice}{other}"
    )


def fills_texts(tower: TextTower) -> bool:
    """Whether a tower fills texts up with padding that its tokens see, as SigLIP's does."""
    device = tower.embedding.weight.device
    word = torch.zeros(1, 1, tower.width, device=device)
    return tower.start(Tokens.full(word)).token_count > 1


def word_embeddings(tower: TextTower) -> FeatureSpec:
    """The texts before the first block that `with_positions` reads."""
    # A state of a tower that reads padding no longer tells which tokens are words.
    if fills_texts(tower):
        return FeatureSpec("words")
    return FeatureSpec("state", -1 - tower.layers)


def with_positions(tower: TextTower, words: Tokens) -> Tokens:
    """Adds positions to word embeddings; states, which have no ids, have them already."""
    if words.ids is None:
        return words
    state = tower.start(words)
    return words.with_values(state.cut(words.token_count).values)


def run_last(tower: Tower, state: Tokens, count: int) -> Tokens:
    """Runs the last `count` layers on the state before them."""
    return tower.run(state, tower.layers - count, tower.layers)


def run_all(tower: TextTower, words: Tokens) -> Tokens:
    """Runs all layers on word embeddings; padding that no row needs is cut."""
    state = tower.start(words.trimmed())
    return tower.run(state, 0, tower.layers)


def each_token(tower: Tower, tokens: Float[Tensor, "n w"], special: int) -> Vectors:
    """Embeds single tokens after the last layer as if all tokens were equal to that one.

    For CLIP this is the final norm and the projection of each token. For attentional pooling
    (SigLIP) it is the pooling of that token alone.
    """
    rows = tokens[:, None].expand(-1, special + 1, -1)  # one patch, for towers that pool patches
    return tower.finish(Tokens.full(rows))


@torch.no_grad()
def embeds_patches(tower: ImageTower) -> bool:
    """Whether images are embedded by their patches after the last layer, or by a class token."""
    device = next(tower.blocks[0].parameters()).device
    tokens = torch.zeros(2, tower.special + 1, tower.width, device=device)
    tokens[1, -1, 0] = 1.0  # in the patch of the second image
    first, second = tower.finish(Tokens.full(tokens))
    return not torch.allclose(first, second)


def value_path(tower: ImageTower, patches: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
    """What a token of the last block would take from each patch, if it attended to that one alone.

    A patch that is alone in the last block attends to itself, so the output of its attention is its
    value, projected. The attention is the child `attn`, `self_attn` or `attention` of the block.
    """
    children = dict(tower.blocks[-1].named_children())
    attention = next(children[name] for name in _ATTENTION if name in children)
    outputs: list[Any] = []
    hook = attention.register_forward_hook(lambda *call: outputs.append(call[-1]))
    try:
        # A compiled block would not see the hook.
        with torch.compiler.set_stance("force_eager"):
            run_last(tower, Tokens.full(patches[:, None]), 1)
    finally:
        hook.remove()
    (output,) = outputs
    # Some classes also give the weights of the attention.
    values = output[0] if isinstance(output, tuple) else output
    return values.reshape(patches.shape)


def params_with_grad(
    embed: Callable[[], Vectors], parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Returns the parameters that the embeddings returned by `embed` depend on.

    A model may hold weights that no embedding uses, such as heads of its pre-training. Training
    them would stop `DistributedDataParallel`, which waits for a gradient of each.
    """
    distinct = list(dict.fromkeys(parameters))
    # Autograd knows which weights matter; layouts of towers differ too much to list them.
    before = [parameter.requires_grad for parameter in distinct]
    try:
        for parameter in distinct:
            parameter.requires_grad_()
        with torch.enable_grad():
            total = embed().sum()
            gradients = torch.autograd.grad(total, distinct, allow_unused=True)
    finally:
        for parameter, requires_grad in zip(distinct, before, strict=True):
            parameter.requires_grad_(requires_grad)
    used = []
    for parameter, gradient in zip(distinct, gradients, strict=True):
        if gradient is not None:
            used.append(parameter)
    return used


def params_of_last(
    tower: Tower, backbone: Backbone, count: int, parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Returns the parameters that the last `count` layers and the end of a tower use.

    Layers may hold more, such as the cross-attention of a text tower that a fusion shares.
    """
    candidates = list(parameters)
    # Positions may be among them, so the probe is as long as a state can be.
    if isinstance(tower, ImageTower):
        length = tower.special + backbone.image_tokens
    else:
        assert isinstance(tower, TextTower)
        length = tower.positions
    # Any state will do: only which weights have a gradient counts.
    zeros = torch.zeros(1, length, tower.width, device=candidates[0].device)
    state = Tokens.full(zeros)

    def embed() -> Vectors:
        return tower.finish(run_last(tower, state, count))

    return params_with_grad(embed, candidates)


def unfreeze(backbone: Backbone, parameters: Sequence[nn.Parameter]) -> None:
    """Makes weights of a backbone trainable."""
    fix_fingerprint(backbone)
    # bf16 weights round small steps to nothing, without an error.
    types = {parameter.dtype for parameter in parameters} - {torch.float32}
    if types:
        raise UserError(
            f"expected float32 weights to fine-tune, got {types.pop()}, which loses small steps: "
            "set the backbone's precision to fp32 (the trainer's may be bf16-mixed)"
        )
    for parameter in parameters:
        parameter.requires_grad_()


def fix_fingerprint(backbone: Backbone) -> str:
    """Computes the backbone's fingerprint, which it keeps, before its weights change."""
    return backbone.fingerprint


def layer_scales(
    tower: Tower, parameters: Iterable[nn.Parameter], decay: float
) -> list[tuple[nn.Parameter, float]]:
    r"""Factors on learning rates that fall from the top of a tower to its bottom.

    $\gamma^{L - l}$ for layer l = 0, ..., L - 1, 1 for what follows the layers and
    $\gamma^{L + 1}$ for the embeddings before them, $\gamma$ being `decay`.

    Source: Clark et al. 2020 (ELECTRA), section A; Bao et al. 2022 (BEiT), section A.
    """
    power: dict[int, int] = {}
    for number, block in enumerate(tower.blocks):
        for parameter in block.parameters():
            power[id(parameter)] = tower.layers - number
    for parameter in tower.tail:
        # Norms and projections after the last layer take the whole rate.
        power[id(parameter)] = 0
    # All that is neither in a block nor after the blocks is an embedding before them.
    embeddings = tower.layers + 1
    scales = []
    for parameter in parameters:
        exponent = power.get(id(parameter), embeddings)
        scales.append((parameter, decay**exponent))
    return scales
