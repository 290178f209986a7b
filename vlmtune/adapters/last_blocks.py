"""Fine-tuning of the last blocks: what comes before them stays frozen and may be stored."""

from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.adapters.base import DualAdapter
from vlmtune.adapters.towers import (
    after_last_block,
    check_decay,
    decayed,
    image_tower,
    length_of,
    text_tower,
    thaw,
    used_by,
)
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pooled


class LastBlocks(DualAdapter[Features, Features]):
    r"""Trains the last n blocks of one or both towers and what follows them (norm, projection).

    $s_{ij} = e^{\tau} \cos(F_I(x_i), F_T(y_j)) + b$. $x$ (t x w) is the token state a frozen tower
    has before its last n blocks; $F$ is these blocks, the final norm, pooling and projection to d.
    $x$ comes from the feature store where there is one, so that a step costs n blocks and not all
    of them, and neither pixels nor the frozen blocks are touched. The trained weights are the
    backbone's own and start as they are: the scores are at first the backbone's.

    Source: the usual partial fine-tuning; compared among others by Ray et al. 2023 (Cola), section
    5.2, "tuning the last two layers". (Section 11.1 there describes new layers on frozen
    features instead: `FTLate`.) `decay` is the layer-wise learning rate of Clark et
    al. 2020 (ELECTRA): block l of L gets $\gamma^{L - l}$ times the rate, what follows gets all.

    Args:
        image: n of the image tower; 0 leaves it frozen, and its embeddings are read.
        text: n of the text tower, likewise.
        decay: $\gamma$; None for one rate.
        learn_scale: Whether $\tau$ and $b$ are trained, which a sigmoid loss needs.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Raises:
        UserError: A number is out of range or nothing is trained.

    Example:
        >>> LastBlocks(image=2, text=0).image_input
        FeatureSpec(kind='state', layer=-3, frozen=True)
    """

    def __init__(
        self,
        image: int = 2,
        text: int = 2,
        decay: float | None = None,
        learn_scale: bool = False,
        initial_scale: float | None = None,
    ) -> None:
        super().__init__()
        if min(image, text) < 0 or image + text == 0:
            raise UserError(
                f"expected numbers of blocks to train, got {image=} and {text=}: "
                "set at least one of them above 0 and none below"
            )
        check_decay(decay)
        self.counts = {"image": image, "text": text}
        self.decay, self.learn_scale, self.initial_scale = decay, learn_scale, initial_scale
        self.image_input, self.text_input = _reads(image), _reads(text)

    def attach(self, backbone: Backbone) -> None:
        """Thaws the last blocks.

        Raises:
            UserError: A tower cannot be had block by block, has fewer blocks, or is not float32.
        """
        self.towers: dict[str, Tower] = {}
        if self.counts["image"]:
            self.towers["image"] = image_tower(backbone)
        if self.counts["text"]:
            self.towers["text"] = text_tower(backbone)
        for modality, tower in self.towers.items():
            if self.counts[modality] > tower.layers:
                raise UserError(
                    f"expected at most {tower.layers} {modality} blocks to train, which is all, "
                    f"got {self.counts[modality]}: lower `{modality}`"
                )
        super().attach(backbone)
        self.set_scale(self.learn_scale, self.initial_scale)
        self.thawed = {
            modality: _last(tower, self.counts[modality], length_of(tower, backbone))
            for modality, tower in self.towers.items()
        }
        thaw(backbone, [p for parameters in self.thawed.values() for p in parameters])

    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        """Factors on the learning rate, where there is a decay."""
        if self.decay is None:
            return []
        return [
            pair
            for modality, tower in self.towers.items()
            for pair in decayed(tower, self.thawed[modality], self.decay)
        ]

    def embed_image(self, image: Features) -> Float[Tensor, "n d"]:
        """Runs the last image blocks, or returns the frozen embeddings."""
        return self._embed("image", image)

    def embed_text(self, text: Features) -> Float[Tensor, "n d"]:
        """Runs the last text blocks, or returns the frozen embeddings."""
        return self._embed("text", text)

    def _embed(self, modality: str, features: Features) -> Float[Tensor, "n d"]:
        if isinstance(features, Pooled):
            return features.values
        tower, count = self.towers[modality], self.counts[modality]
        return tower.finish(after_last_block(tower, features.trimmed(), count))


def _reads(count: int) -> FeatureSpec:
    return FeatureSpec("state", -(count + 1)) if count else FeatureSpec("pooled")


def _last(tower: Tower, count: int, length: int) -> list[nn.Parameter]:
    """The parameters of the last blocks and what follows, those that an embedding uses."""
    blocks = tower.blocks[tower.layers - count :]
    candidates = [p for block in blocks for p in block.parameters()]
    return used_by(tower, count, length, [*candidates, *tower.tail])
