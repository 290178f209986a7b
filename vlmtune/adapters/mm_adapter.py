"""MM-Adapter: a light multimodal transformer over frozen token features (Cola's best strategy)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.base import log_of_scale
from vlmtune.adapters.fused import FusedAdapter
from vlmtune.adapters.fusion_styles.base import FusionStyle
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.types import Tokens


class MMAdapter(FusedAdapter):
    r"""Scores image I against query Q by the cosine of one fused token to the query's own tokens.

    $f(I, Q) = e^{\tau} \frac{1}{N_q} \sum_i \cos(\mathrm{out}, q_i) + b$, with out the [CLS] output
    of the fusion. A style with two [CLS] tokens (FIBER, FIBER-MM) is scored by their cosine,
    $f(I, Q) = e^{\tau} \cos(\mathrm{out}_T, \mathrm{out}_I) + b$, as section 10.1 says; there the
    frozen text is no target.

    Source: Cola (Ray et al. 2023), section 4 and, for the five styles of fusion, section 10.1 and
    Table 5; their names are ours: I are the image's patch tokens (t x v), Q the text's tokens
    (t x w), $q_i$ its $N_q$ words (start and end tokens attend and are attended but are not
    averaged over), [CLS] `query`. Both are read at the layer before the last, as section 11.1 says;
    `project` maps v to w. $\tau$ and $b$ are ours: the paper's cosine in [-1, 1] cannot fit a
    sigmoid loss.

    The snippet the authors released differs from the paper in two ways, both to be had here:
    `cosine=False` averages dot products (without $\tau$, $b$), and `masked=False` lets padding be
    attended, up to the longest caption of the batch. In that form, with its defaults (MDETR style,
    4 heads, 1 + 1 layers, post-norm, ReLU, 2,048 hidden units, dropout 0.1), it has 7,752,704
    parameters on CLIP ViT-B/32, the 7.8M of Table 5. Each style's docstring has its own count.

    Whatever depends on one modality alone is computed once per image and once per text: words are
    normalised and averaged there too, as the mean of cosines is the product with the mean word.

    Args:
        heads: Attention heads.
        encoder_layers: Self-attention layers (of each encoder); None for the style's own number.
        decoder_layers: Cross-attention layers (of each decoder); None for the style's own number.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability in training.
        norm_first: Pre-norm (steadier at high learning rates) rather than post-norm.
        normalize_tokens: Layer-normalise (without parameters) the projected image tokens and the
            text tokens before fusing them; the cosine's target stays as it is. Ours: states inside
            a pre-trained tower are large (a standard deviation of 3 to 5 in the shipped one), so
            that a new pre-norm layer hardly moves them.
        cosine: Cosine (the paper) rather than dot product (the snippet).
        masked: Hide padding from attention.
        image_layer: Layer of the image tokens, counted from the end.
        text_layer: Layer of the text tokens, counted from the end.
        initial_scale: $e^{\tau}$ at the start.
        fusion: The style of the fusion, an object of `vlmtune.adapters.fusion_styles`; None for
            `Mdetr`.
        memory: Bytes that scoring a chunk of pairs may take.
        training_memory: Bytes of activations kept for the backward pass; beyond them activations
            are computed again, which takes a third more time.

    Raises:
        UserError: The heads do not divide the width, the style cannot have so many layers, or a
            number is out of range.

    Example:
        >>> from vlmtune.adapters.fusion_styles.albef import Albef
        >>> MMAdapter(fusion=Albef()).spec()["init_args"]["fusion"]["class_path"]
        'vlmtune.adapters.fusion_styles.albef.Albef'
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
        cosine: bool = True,
        masked: bool = True,
        image_layer: int = -2,
        text_layer: int = -2,
        initial_scale: float = 10.0,
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
        self.cosine, self.initial_scale = cosine, initial_scale

    def attach(self, backbone: Backbone) -> None:
        """Makes the fusion, and scale and offset of the cosine."""
        super().attach(backbone)
        if self.cosine:
            self.log_scale = nn.Parameter(torch.tensor(log_of_scale(self.initial_scale)))
            self.bias = nn.Parameter(torch.zeros(()))

    @property
    def goal_width(self) -> int:
        """w, or 0 where the fusion's two outputs are compared with each other."""
        return self.query.shape[2] if self.style.queries == 1 else 0

    def goal(self, text: Tokens) -> Float[Tensor, "n g"]:
        """The mean of a text's words, normalised before where scores are cosines."""
        if not self.goal_width:
            return text.values.new_zeros(len(text), 0)
        tokens = normalize(text.values, dim=-1) if self.cosine else text.values
        return masked_mean(tokens, word_mask(text.mask, self.special))

    def judge(
        self, fused: Float[Tensor, "P c w"], goal: Float[Tensor, "P g"]
    ) -> Float[Tensor, "P"]:
        """Compares [CLS] with the text's words, or with the other [CLS]."""
        if self.cosine:
            fused = normalize(fused, dim=-1)
        other = goal if self.goal_width else fused[:, 1]
        products = (fused[:, 0] * other).sum(dim=-1)
        return self.log_scale.exp() * products + self.bias if self.cosine else products
