"""LoRA on the blocks of either tower, whatever library they come from."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vlmtune.adapters.base import DualAdapter
from vlmtune.adapters.low_rank import TARGETS, LowRank, projections
from vlmtune.adapters.towers import image_tower, keep_fingerprint, length_of, text_tower, used_by
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pooled

Target = Literal["query", "key", "value", "out", "mlp"]


class LoRA(DualAdapter[Pooled, Pooled]):
    r"""Trains low-rank updates of weights inside the towers; the weights themselves are frozen.

    $s_{ij} = e^{\tau} \cos(F_I(v_i), F_T(y_j)) + b$, F the backbone with $W + \frac{\alpha}{r} B A$
    in place of each chosen W (out x in), A (r x in) random and B (out x r) zero at the start. Each
    projection has its own pair, also where a library packs query, key and value into one weight
    (`nn.MultiheadAttention`, timm). The frozen W are never written to; `merge` does that for good.

    Source: Hu et al. 2021 (LoRA), section 4.1, their letters; queries and values are the targets
    of section 4.2, and $\alpha = r$ gives a factor of 1. `dropout` leaves out input features of an
    update, the same ones for all tokens of a step, where theirs draws anew for each token.

    Args:
        rank: r.
        alpha: $\alpha$.
        dropout: Probability with which an input feature of an update is left out in training.
        targets: Which weights of each block: "query", "key", "value", "out" (of attention) and
            "mlp" (both of its layers). None for queries and values.
        image: Whether the image tower is updated.
        text: Whether the text tower is updated.
        learn_scale: Whether $\tau$ and $b$ are trained, which a sigmoid loss needs.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Raises:
        UserError: A number or target is out of range, or neither tower is updated.

    Example:
        >>> LoRA(rank=8, image=False).image_input
        FeatureSpec(kind='pooled', layer=-1, frozen=True)
    """

    def __init__(
        self,
        rank: int = 4,
        alpha: float = 4.0,
        dropout: float = 0.0,
        targets: list[Target] | None = None,
        image: bool = True,
        text: bool = True,
        learn_scale: bool = False,
        initial_scale: float | None = None,
    ) -> None:
        super().__init__()
        if rank < 1 or alpha <= 0 or not 0 <= dropout < 1:
            raise UserError(
                f"expected rank >= 1, alpha > 0 and dropout in [0, 1), got {rank=}, {alpha=}, "
                f"{dropout=}: correct them"
            )
        self.targets = ("query", "value") if targets is None else tuple(targets)
        if not self.targets or set(self.targets) - set(TARGETS):
            raise UserError(
                f"expected targets among {', '.join(TARGETS)}, got {list(self.targets)}: "
                "choose at least one of these"
            )
        if not (image or text):
            raise UserError("expected a tower to update, got none: set image or text to true")
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        self.on_image, self.on_text = image, text
        self.learn_scale, self.initial_scale = learn_scale, initial_scale
        self.image_input = FeatureSpec("pooled", frozen=not image)
        self.text_input = FeatureSpec("pooled", frozen=not text)

    def attach(self, backbone: Backbone) -> None:
        """Puts updates, zero at first, on the weights of the backbone.

        Raises:
            UserError: A tower cannot be had block by block, has no such weights, or has updates.
        """
        towers: list[Tower] = []
        if self.on_image:
            towers.append(image_tower(backbone))
        if self.on_text:
            towers.append(text_tower(backbone))
        super().attach(backbone)
        self.set_scale(self.learn_scale, self.initial_scale)
        keep_fingerprint(backbone)
        self.updated = [pair for tower in towers for pair in self._put_on(tower, backbone)]

    def _put_on(self, tower: Tower, backbone: Backbone) -> list[tuple[nn.Module, str]]:
        found = [one for block in tower.blocks for one in projections(block, self.targets)]
        if not found:
            raise UserError(
                f"expected weights for {', '.join(self.targets)} in {type(tower).__name__}, got "
                "none that are known: choose other targets or another backbone"
            )
        if any(parametrize.is_parametrized(module, name) for module, name, _, _ in found):
            raise UserError(
                "expected a backbone without updates, got one that LoRA was attached to: "
                "make the backbone anew"
            )
        weights = [getattr(module, name) for module, name, _, _ in found]
        used = {id(p) for p in used_by(tower, tower.layers, length_of(tower, backbone), weights)}
        found = [one for one, weight in zip(found, weights, strict=True) if id(weight) in used]
        for module, name, parts, chosen in found:
            weight = getattr(module, name)
            update = LowRank(weight, parts, chosen, self.rank, self.alpha, self.dropout)
            parametrize.register_parametrization(module, name, update.train(module.training))
        return [(module, name) for module, name, _, _ in found]

    def merge(self) -> None:
        """Writes the updates into the weights: the backbone is then an ordinary one, and as fast.

        Its scores stay the same; there is nothing left to train or to export.
        """
        for module, name in self.updated:
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
        self.updated = []

    def embed_image(self, image: Pooled) -> Float[Tensor, "n d"]:
        """Returns the embeddings of the images."""
        return image.values

    def embed_text(self, text: Pooled) -> Float[Tensor, "n d"]:
        """Returns the embeddings of the texts."""
        return text.values
