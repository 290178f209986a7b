"""MM-Pred: the MM-Adapter's fusion with a linear layer as prediction head."""

from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.adapters.fused import FusedAdapter
from vlmtune.adapters.fusion_styles.base import FusionStyle
from vlmtune.backbones.base import Backbone
from vlmtune.types import Tokens


class MMPred(FusedAdapter):
    r"""Scores image I against query Q by $f(I, Q) = u^\top \mathrm{out} + b$.

    out is the [CLS] output of the fusion, as in `MMAdapter`, which compares it with the frozen
    text instead. A style with two [CLS] tokens (FIBER, FIBER-MM) has both outputs, one after the
    other, as out: the paper names their cosine as the score of those styles, which here is the
    MM-Adapter, and leaves open what MM-Pred is there; a linear layer on both is our reading.

    Source: Cola (Ray et al. 2023), sections 4 and 11.1 ("a fully-connected layer on the [CLS] token
    output"); its names are those of `MMAdapter`. u and b are `predict`, w + 1 numbers (2w + 1 with
    two [CLS] tokens): with the MDETR style 7,753,217 parameters on CLIP ViT-B/32. Scores are
    log-odds.

    Args:
        heads: Attention heads.
        encoder_layers: Self-attention layers (of each encoder); None for the style's own number.
        decoder_layers: Cross-attention layers (of each decoder); None for the style's own number.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability in training.
        norm_first: Pre-norm rather than post-norm.
        normalize_tokens: Layer-normalise (without parameters) the projected image tokens and the
            text tokens before fusing them.
        masked: Hide padding from attention.
        image_layer: Layer of the image tokens, counted from the end.
        text_layer: Layer of the text tokens, counted from the end.
        fusion: The style of the fusion, an object of `vlmtune.adapters.fusion_styles`; None for
            `Mdetr`.
        memory: Bytes that scoring a chunk of pairs may take.
        training_memory: Bytes of activations kept for the backward pass; beyond them activations
            are computed again, which takes a third more time.

    Raises:
        UserError: The heads do not divide the width, the style cannot have so many layers, or a
            number is out of range.
    """

    def __init__(
        self,
        heads: int = 4,
        encoder_layers: int | None = None,
        decoder_layers: int | None = None,
        hidden: int = 4,
        dropout: float = 0.1,
        norm_first: bool = False,
        normalize_tokens: bool = False,
        masked: bool = True,
        image_layer: int = -2,
        text_layer: int = -2,
        fusion: FusionStyle | None = None,
        memory: int = 512 * 2**20,
        training_memory: int = 3 * 2**30,
    ) -> None:
        super().__init__(
            fusion,
            heads,
            encoder_layers,
            decoder_layers,
            hidden,
            dropout,
            norm_first,
            normalize_tokens,
            masked,
            (image_layer, text_layer),
            memory,
            training_memory,
        )

    def attach(self, backbone: Backbone) -> None:
        """Makes the fusion and the prediction head."""
        super().attach(backbone)
        self.predict = nn.Linear(self.style.queries * backbone.text_width, 1)

    @property
    def goal_width(self) -> int:
        """0: nothing is compared."""
        return 0

    def goal(self, text: Tokens) -> Float[Tensor, "n g"]:
        """Nothing: (n, 0)."""
        return text.values.new_zeros(len(text), 0)

    def judge(
        self, fused: Float[Tensor, "P c w"], goal: Float[Tensor, "P g"]
    ) -> Float[Tensor, "P"]:
        """Predicts log-odds from all [CLS] outputs."""
        return self.predict(fused.flatten(1))[:, 0]
