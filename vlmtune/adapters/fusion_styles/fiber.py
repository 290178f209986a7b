"""FIBER-style fusion: the text attends to the image and the image to the text.

In: image tokens and text tokens. Out: two [CLS] tokens of each pair, one of each direction.
Never: an encoder that sees both modalities.
"""

import torch
from torch import Tensor
from typing_extensions import override

from vlmtune.adapters.fusion_styles.attention import States
from vlmtune.adapters.fusion_styles.base import ClsOutputs, ClsTokens, FusionStyle
from vlmtune.adapters.fusion_styles.layers import Decoder, Encoder, TokenMask
from vlmtune.types import PooledTokens, Tokens


class Fiber(FusionStyle):
    r"""Two [CLS] tokens, one with the text reading the image, one with the image reading the text.

    With $A_I = \mathrm{Enc}_I(W I)$ and $A_T = \mathrm{Enc}_T(Q)$:
    $\mathrm{out}_T = \mathrm{Dec}_T([\mathrm{CLS}_T; A_T], A_I)_0$,
    $\mathrm{out}_I = \mathrm{Dec}_I([\mathrm{CLS}_I; A_I], A_T)_0$.

    Source: Cola (Ray et al. 2023), section 10.1 "FIBER-inspired"; letters as in `FusionStyle`. The
    [CLS] token of the text comes first. Both directions read the encoders' output.

    Once per image and once per text: both encoders, and both decoders' first layers up to their
    cross-attention. With one decoder layer a pair costs two tokens.

    Parameters: W 393,728, two encoder layers of 3,152,384, two decoder layers of 4,204,032, four
    final norms 4,096, [CLS] 1,024: 15,111,680. Table 5 says 15M.
    """

    encoders = ("image_encoder", "text_encoder")
    decoders = ("image_decoder", "text_decoder")
    queries = 2
    two_sided = True
    image_encoder: Encoder
    text_encoder: Encoder
    image_decoder: Decoder
    text_decoder: Decoder

    @override
    def prepare_image(self, image: Tokens, query: ClsTokens) -> PooledTokens:
        states = self.image_encoder.all(image.values, image.mask)
        side = self.image_side(states, image.mask, query)
        return side.with_lengths(image.noted_lengths)

    @override
    def prepare_text(self, text: Tokens, query: ClsTokens) -> PooledTokens:
        states = self.text_encoder.all(text.values, text.mask)
        side = self.text_side(states, text.mask, query)
        return side.with_lengths(text.noted_lengths)

    def image_side(self, states: States, mask: TokenMask, query: ClsTokens) -> PooledTokens:
        """What the decoders need of encoded images; `pooled` belongs to [CLS]."""
        return _side(states, mask, query[:, 1:], self.image_decoder, self.text_decoder)

    def text_side(self, states: States, mask: TokenMask, query: ClsTokens) -> PooledTokens:
        """What the decoders need of encoded texts; `pooled` belongs to [CLS]."""
        return _side(states, mask, query[:, :1], self.text_decoder, self.image_decoder)

    @override
    def fuse(self, image: PooledTokens, text: PooledTokens, query: ClsTokens) -> ClsOutputs:
        from_text = _decode(self.text_decoder, text, image)
        from_image = _decode(self.image_decoder, image, text)
        return torch.cat([from_text, from_image], dim=1)

    @override
    def tokens_per_layer(self, image_tokens: int, text_tokens: int) -> list[int]:
        early = len(self.text_decoder.layers) - 1
        return [1 + text_tokens, 1 + image_tokens] * early + [1, 1]


def _side(
    states: States, mask: TokenMask, query: ClsTokens, decoder: Decoder, other: Decoder
) -> PooledTokens:
    """The target of one decoder, with the memory of the other beside its tokens."""
    prepared, others = decoder.prepare_target(query, states, mask)
    memory = other.prepare_memory(states)
    # Side by side, so that both are gathered and padded as one tensor; `_decode` splits them.
    values = torch.cat([others, memory], dim=2)
    return PooledTokens(prepared, Tokens(values, mask))


def _decode(decoder: Decoder, target: PooledTokens, memory: PooledTokens) -> Tensor:
    width = decoder.other_width  # both decoders have the same number of layers
    others = target.tokens.values[..., :width]
    packed = memory.tokens.values[..., width:]
    return decoder.decode(target.pooled, others, target.tokens.mask, packed, memory.tokens.mask)
