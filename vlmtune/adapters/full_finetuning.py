"""Fine-tuning of whole towers, with what objectives on tokens need."""

from typing import Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter
from vlmtune.adapters.towers import (
    check_decay,
    decayed,
    each_token,
    image_tower,
    needed,
    text_tower,
    thaw,
)
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pooled, Tokens


class FullFineTuning(DualAdapter[Features, Features]):
    r"""Trains all weights of one or both towers.

    $s_{ij} = e^{\tau} \cos(F_I(v_i), F_T(y_j)) + b$, $F$ the backbone itself, which starts as it
    is. Every step runs the trained towers on pixels and captions; for large batches set `chunk` of
    the model. Weights that no embedding uses (heads of the pre-training) stay as they are. One side
    can stay frozen, as in LiT and CLIC: its embeddings then come from the feature store.

    With `tokens` it also gives each patch and each word in the shared space, for FSC-CLIP's local
    loss: of a token h after the last block (w wide) what the tower's end (norm, pooling,
    projection to d) makes of that token alone.

    Source: the fine-tuning of NegCLIP (Yuksekgonul et al. 2023, section 4) and FSC-CLIP (Oh et al.
    2024), there with rates of 1e-6 to 1e-5; "FT all" of Cola (Ray et al. 2023, section 11.1),
    151M parameters on CLIP ViT-B/32. `decay` is the layer-wise rate of Clark et al. 2020
    (ELECTRA): block l of L gets $\gamma^{L - l}$, embeddings $\gamma^{L + 1}$ times the rate.

    Args:
        image: Whether the image tower is trained.
        text: Whether the text tower is trained.
        embeddings: Whether that includes what comes before the first block: patch, word and
            position embeddings.
        decay: $\gamma$; None for one rate.
        tokens: Give tokens too. Reads the last state of the images and the words of the texts.
        learn_scale: Whether $\tau$ and $b$ are trained; CLIP trains $\tau$ with the towers.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Raises:
        UserError: Neither tower is trained or `decay` is out of range.

    Example:
        >>> adapter = FullFineTuning(image=False)
        >>> adapter.image_input.frozen, adapter.text_input.frozen
        (True, False)
    """

    def __init__(
        self,
        image: bool = True,
        text: bool = True,
        embeddings: bool = True,
        decay: float | None = None,
        tokens: bool = False,
        learn_scale: bool = True,
        initial_scale: float | None = None,
    ) -> None:
        super().__init__()
        if not (image or text):
            raise UserError("expected a tower to train, got none: set image or text to true")
        check_decay(decay)
        self.trains = {"image": image, "text": text}
        self.embeddings, self.decay = embeddings, decay
        self.learn_scale, self.initial_scale = learn_scale, initial_scale
        self.gives_tokens = tokens  # type: ignore[misc]
        self.image_input = FeatureSpec("state" if tokens else "pooled", frozen=not image)
        self.text_input = FeatureSpec("words" if tokens else "pooled", frozen=not text)

    def attach(self, backbone: Backbone) -> None:
        """Thaws the towers.

        Raises:
            UserError: A tower is needed block by block and cannot be had so, or is not float32.
        """
        if self.gives_tokens or self.decay is not None or not self.embeddings:
            self.image_tower, self.text_tower = image_tower(backbone), text_tower(backbone)
        super().attach(backbone)
        self.set_scale(self.learn_scale, self.initial_scale)
        self.thawed: dict[str, list[nn.Parameter]] = {}
        for modality in ("image", "text"):
            if self.trains[modality]:
                self.thawed[modality] = self._chosen(modality, _weights(backbone, modality))
        thaw(backbone, [p for parameters in self.thawed.values() for p in parameters])

    def _chosen(self, modality: str, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        if self.embeddings:
            return parameters
        tower = self._tower(modality)
        inside = {id(p) for block in tower.blocks for p in block.parameters()}
        inside |= {id(p) for p in tower.tail}
        return [p for p in parameters if id(p) in inside]

    def _tower(self, modality: str) -> Tower:
        return self.image_tower if modality == "image" else self.text_tower

    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        """Factors on the learning rate, where there is a decay."""
        if self.decay is None:
            return []
        return [
            pair
            for modality, parameters in self.thawed.items()
            for pair in decayed(self._tower(modality), parameters, self.decay)
        ]

    @override
    def embed_image(self, image: Features) -> Float[Tensor, "n d"]:
        return image.values if isinstance(image, Pooled) else self.image_tower.finish(image)

    @override
    def embed_text(self, text: Features) -> Float[Tensor, "n d"]:
        if isinstance(text, Pooled):
            return text.values
        return self.text_tower.finish(self._text_state(text))

    def _text_state(self, words: Tokens) -> Tokens:
        tower = self.text_tower
        return tower.run(tower.start(words.trimmed()), 0, tower.layers)

    @override
    def embed_patches(self, image: Tokens) -> Tokens:
        special = self.image_tower.special
        patches = image.values[:, special:]
        flat = each_token(self.image_tower, patches.flatten(0, 1), special)
        return Tokens.full(flat.unflatten(0, patches.shape[:2]))

    @override
    def embed_words(self, text: Tokens) -> Tokens:
        mask, state = text.trimmed().mask, self._text_state(text)
        # A tower that needs its full length pads captions: padding is no word.
        real = each_token(self.text_tower, state.cut(mask.shape[1]).values[mask], 0)
        values = real.new_zeros(*mask.shape, real.shape[1])
        return Tokens(values.index_put((mask,), real), mask)


def _weights(backbone: Backbone, modality: Literal["image", "text"]) -> list[nn.Parameter]:
    """All weights that embeddings of a modality depend on."""
    live = FeatureSpec("pooled", frozen=False)

    def embed() -> Float[Tensor, "n d"]:
        if modality == "image":
            pixels = backbone.preprocess(Image.new("RGB", (8, 8)))[None].to(backbone.device)
            features = backbone.encode_image(pixels, live)
        else:
            features = backbone.encode_text(["a"], live)
        assert isinstance(features, Pooled)
        return features.values

    if modality == "image" or backbone.text_tower is None:
        return needed(embed, backbone.parameters())
    tower = backbone.text_tower

    def embed_unknown() -> Float[Tensor, "n d"]:  # no word is in every vocabulary
        tokens = torch.zeros(1, tower.positions, tower.width, device=backbone.device)
        words = tower.start(Tokens.full(tokens))
        return tower.finish(tower.run(words, 0, tower.layers))

    words = list(tower.embedding.parameters())
    others = [p for p in backbone.parameters() if p is not words[0]]
    return [*needed(embed_unknown, others), *words]
