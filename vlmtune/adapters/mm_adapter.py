"""MM-Adapter: a light multimodal transformer over frozen token features (Cola's best strategy)."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from vlmtune.adapters.base import JointAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.types import Features, Reads


class MMAdapter(JointAdapter):
    r"""Scores image I against query Q by the cosine of one fused token to the query's own tokens.

    $M = [W I; Q]$, $A = \mathrm{Encoder}(M)$, $\mathrm{out} = \mathrm{Decoder}([\mathrm{CLS}], A)$,
    $f(I, Q) = e^{\tau} \frac{1}{N_q} \sum_i \cos(\mathrm{out}, q_i) + b$.

    Source: Cola (Ray et al. 2023), section 4 and, for the MDETR-style fusion, section 10.1; their
    names are ours: I are the image's patch tokens (t x w), Q the text's tokens, $q_i$ its $N_q$
    words (start and end tokens attend and are attended but are not averaged over), [CLS] `query`.
    Both are read at the layer before the last, as section 11.1 says. $W$ maps w of the image to w
    of the text. $\tau$ and $b$ are ours: the paper's cosine in [-1, 1] cannot fit a sigmoid loss.

    The snippet the authors released differs from the paper in two ways, both to be had here:
    `cosine=False` averages dot products (without $\tau$, $b$), and `masked=False` lets padding be
    attended. In that form, with its defaults (4 heads, 1 + 1 layers, post-norm, ReLU, 2,048 hidden
    units, dropout 0.1), it has 7,752,704 parameters on CLIP ViT-B/32, the 7.8M of Table 5.

    Args:
        heads: Attention heads.
        encoder_layers: Self-attention layers over M.
        decoder_layers: Layers in which [CLS] attends to A.
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

    Raises:
        UserError: The heads do not divide the width.
    """

    def __init__(
        self,
        heads: int = 4,
        encoder_layers: int = 1,
        decoder_layers: int = 1,
        hidden: int = 4,
        dropout: float = 0.1,
        norm_first: bool = False,
        normalize_tokens: bool = False,
        cosine: bool = True,
        masked: bool = True,
        image_layer: int = -2,
        text_layer: int = -2,
        initial_scale: float = 10.0,
    ) -> None:
        super().__init__()
        self.heads, self.hidden, self.dropout, self.norm_first = heads, hidden, dropout, norm_first
        self.encoder_layers, self.decoder_layers = encoder_layers, decoder_layers
        self.normalize_tokens = normalize_tokens
        self.cosine, self.masked, self.initial_scale = cosine, masked, initial_scale
        self.image_reads = Reads("tokens", image_layer)
        self.text_reads = Reads("tokens", text_layer)

    def attach(self, backbone: Backbone) -> None:
        """Makes the projection, the transformer and the [CLS] token in the text's width."""
        super().attach(backbone)
        width = backbone.text_width
        if width % self.heads:
            raise UserError(
                f"expected heads that divide the token width {width}, got {self.heads}: "
                "choose another number of heads"
            )
        self.special = backbone.text_special
        self.project = nn.Linear(backbone.image_width, width)
        self.encoder, self.decoder = self._layers(width)
        self.query = nn.Parameter(torch.rand(1, 1, width))
        if self.cosine:
            self.log_scale = nn.Parameter(torch.tensor(math.log(self.initial_scale)))
            self.bias = nn.Parameter(torch.zeros(()))

    def _layers(self, width: int) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
        """Makes what `nn.Transformer` would, initialised as it would."""
        shape = (width, self.heads, self.hidden * width, self.dropout)
        options: dict[str, Any] = {"batch_first": True, "norm_first": self.norm_first}
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*shape, **options),
            self.encoder_layers,
            nn.LayerNorm(width),
            enable_nested_tensor=False,
        )
        decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*shape, **options), self.decoder_layers, nn.LayerNorm(width)
        )
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        return encoder, decoder

    def prepare_image(self, image: Features) -> Features:
        """Projects patch tokens to the width of the text, (n, t, w)."""
        return Features(tokens=self._normalized(self.project(image.tokens)), mask=image.mask)

    def prepare_text(self, text: Features) -> Features:
        """Leaves text tokens as they are: the target of the cosine is frozen."""
        return text

    def score_pairs(self, image: Features, text: Features) -> Float[Tensor, "P"]:
        """Fuses and scores P pairs."""
        assert image.tokens is not None
        assert text.tokens is not None
        assert text.mask is not None
        padding = self._padding(image, text) if self.masked else None
        tokens = torch.cat([image.tokens, self._normalized(text.tokens)], dim=1)
        fused = self.encoder(tokens, src_key_padding_mask=padding)
        query = self.query.expand(len(fused), -1, -1)
        out = self.decoder(query, fused, memory_key_padding_mask=padding)
        words = word_mask(text.mask, self.special)
        if self.cosine:
            products = (normalize(out, dim=-1) * normalize(text.tokens, dim=-1)).sum(dim=-1)
        else:
            products = (out * text.tokens).sum(dim=-1)
        mean = (products * words).sum(dim=1) / words.sum(dim=1)
        return self.log_scale.exp() * mean + self.bias if self.cosine else mean

    def _normalized(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        return layer_norm(tokens, tokens.shape[-1:]) if self.normalize_tokens else tokens

    @staticmethod
    def _padding(image: Features, text: Features) -> Bool[Tensor, "P tokens"]:
        assert image.tokens is not None
        assert text.mask is not None
        real = image.tokens.new_ones(image.tokens.shape[:2], dtype=torch.bool)
        return ~torch.cat([real, text.mask], dim=1)


def word_mask(mask: Bool[Tensor, "n t"], special: tuple[int, int]) -> Bool[Tensor, "n t"]:
    """Drops the leading and trailing special tokens of each row from a right-padded mask.

    Example:
        >>> word_mask(torch.tensor([[True, True, True, False]]), (1, 1)).tolist()
        [[False, True, False, False]]
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    lead, trail = special
    return (position >= lead) & (position < mask.sum(dim=1, keepdim=True) - trail)
