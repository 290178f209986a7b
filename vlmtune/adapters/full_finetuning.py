"""Fine-tuning of all weights of a tower, with token embeddings for objectives that need them.

In: pixels and captions, by way of the towers. Out: scores of all pairs. Never: new weights.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import Decay, DualAdapter, Scale, Vectors
from vlmtune.adapters.towers import (
    each_token,
    image_tower,
    layer_scales,
    params_with_grad,
    run_all,
    text_tower,
    unfreeze,
)
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.types import Features, FeatureSpec, Pooled, Tokens, positions

LIVE = FeatureSpec("pooled", frozen=False)  # with a gradient, which tells what weights matter


class FullFineTuning(DualAdapter[Features, Features]):
    r"""Trains all weights of one or both towers.

    $s_{ij} = e^{\tau} \cos(F_I(v_i), F_T(y_j)) + b$, $F$ the backbone itself. Every step runs the
    trained towers on pixels and captions; for large batches set `chunk` of the model. Weights that
    no embedding uses (heads of the pre-training) stay frozen. One tower can stay frozen, as in LiT
    and CLIC: its embeddings then come from the feature store.

    With `tokens` it also embeds each patch and each word in the shared space, for FSC-CLIP's local
    loss: the tower's end (norm, pooling, projection to d) is applied to each token alone.

    Choose it for large corpora, or where an objective needs patch and word tokens.

    - Requirements: images with captions; every step runs the trained towers on pixels and captions.
    - Recommended: learning rates of 1e-6 to 1e-5 and a `Distillation` against forgetting.
    - Relations: `LoRA` trains less, `LastBlocks` runs less.
    - Config: `--model.adapter full_finetuning`.

    Source: the fine-tuning of NegCLIP (Yuksekgonul et al. 2023, section 4) and FSC-CLIP (Oh et al.
    2024), there with rates of 1e-6 to 1e-5; "FT all" of Cola (Ray et al. 2023, section 11.1),
    151M parameters on CLIP ViT-B/32. `decay` is the layer-wise rate of Clark et al. 2020
    (ELECTRA): block l of L gets $\gamma^{L - l}$, embeddings $\gamma^{L + 1}$ times the rate.

    Args:
        image: Whether the image tower is trained.
        text: Whether the text tower is trained.
        decay: $\gamma$; None for one rate.
        tokens: Embed tokens too, from the last state of the images and the words of the texts.
        learn_scale: Whether $\tau$ and $b$ are trained; CLIP trains $\tau$ with the towers.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.
        initial_bias: $b$ at the start, or None for the backbone's: a sigmoid loss on SigLIP needs
            that, because the small learning rates of towers hardly move $b$.

    Example:
        >>> adapter = FullFineTuning(image=False)
        >>> adapter.image_input.frozen, adapter.text_input.frozen
        (True, False)
    """

    def __init__(
        self,
        image: bool = True,
        text: bool = True,
        decay: Decay | None = None,
        tokens: bool = False,
        learn_scale: bool = True,
        initial_scale: Scale | None = None,
        initial_bias: float | None = 0.0,
    ) -> None:
        super().__init__(learn_scale, initial_scale, initial_bias)
        self.trains_image = image
        self.trains_text = text
        self.decay = decay
        self.gives_tokens = tokens  # type: ignore[misc]
        image_kind = "state" if tokens else "pooled"
        text_kind = "words" if tokens else "pooled"
        self.image_input = FeatureSpec(image_kind, frozen=not image)
        self.text_input = FeatureSpec(text_kind, frozen=not text)

    @override
    def attach(self, backbone: Backbone) -> None:
        # Token embeddings need both towers, rates by block the trained ones.
        by_block = self.decay is not None
        if self.gives_tokens or (by_block and self.trains_image):
            self.image_tower = image_tower(backbone)
        if self.gives_tokens or (by_block and self.trains_text):
            self.text_tower = text_tower(backbone)
        super().attach(backbone)
        # Both sides are found before any weight is unfrozen, as a tower may share some.
        self.trained: dict[str, list[nn.Parameter]] = {}
        if self.trains_image:
            self.trained["image"] = _image_weights(backbone)
        if self.trains_text:
            self.trained["text"] = _text_weights(backbone)
        for parameters in self.trained.values():
            unfreeze(backbone, parameters)

    @override
    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        if self.decay is None:
            return []
        scales = []
        if self.trains_image:
            scales += layer_scales(self.image_tower, self.trained["image"], self.decay)
        if self.trains_text:
            scales += layer_scales(self.text_tower, self.trained["text"], self.decay)
        return scales

    @override
    def embed_image(self, image: Features) -> Vectors:
        if isinstance(image, Pooled):
            return image.values
        return self.image_tower.finish(image)

    @override
    def embed_text(self, text: Features) -> Vectors:
        if isinstance(text, Pooled):
            return text.values
        state = run_all(self.text_tower, text)
        return self.text_tower.finish(state)

    def embed_patches(self, image: Tokens) -> Tokens:
        """Embeds the patches of images in the shared space."""
        special = self.image_tower.special
        return _each_real(self.image_tower, image.without_first(special), special)

    def embed_words(self, text: Tokens) -> Tokens:
        """Embeds the tokens of texts in the shared space."""
        words = text.trimmed()
        # A tower that needs its full length pads captions: padding is not a word.
        states = run_all(self.text_tower, text).cut(words.token_count)
        return _each_real(self.text_tower, words.with_values(states.values), 0)


def _each_real(tower: Tower, tokens: Tokens, special: int) -> Tokens:
    """Embeds each real token by itself; padding is 0."""
    real = positions(tokens.cpu_mask, tokens.device)
    embedded = each_token(tower, tokens.values[real], special)
    zeros = embedded.new_zeros(*tokens.mask.shape, embedded.shape[1])
    return tokens.with_values(zeros.index_put(real, embedded))


def _image_weights(backbone: Backbone) -> list[nn.Parameter]:
    """The weights that image embeddings depend on."""
    # Any image will do: only which weights have a gradient counts.
    pixels = backbone.blank()

    def embed() -> Tensor:
        return backbone.encode_image(pixels, LIVE).values

    return params_with_grad(embed, backbone.parameters())


def _text_weights(backbone: Backbone) -> list[nn.Parameter]:
    """The weights that text embeddings depend on."""
    tower = backbone.text_tower
    if tower is None:

        def encode() -> Vectors:
            return backbone.encode_text(["a"], LIVE).values

        return params_with_grad(encode, backbone.parameters())

    # No word is in every vocabulary, so the tower starts from zeros in place of word embeddings.
    zeros = torch.zeros(1, tower.positions, tower.width, device=backbone.device)
    words = Tokens.full(zeros)

    def embed() -> Vectors:
        return tower.finish(run_all(tower, words))

    # The table of words is trained, though the zeros do not pass through it.
    table = list(tower.embedding.parameters())
    others = [parameter for parameter in backbone.parameters() if parameter is not table[0]]
    return params_with_grad(embed, others) + table
