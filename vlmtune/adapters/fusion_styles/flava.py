"""FLAVA-style fusion: self-attention over a [CLS] token, image tokens and text tokens.

In: image tokens and text tokens. Out: a [CLS] token of each pair.
Never: a decoder; the encoder reads all tokens at once.
"""

from typing_extensions import override

from vlmtune.adapters.fusion_styles.base import (
    ClsOutputs,
    ClsTokens,
    JointEncoderStyle,
    side_by_side,
)
from vlmtune.types import PooledTokens, Tokens


class Flava(JointEncoderStyle):
    r"""$\mathrm{out} = \mathrm{Enc}([\mathrm{CLS}; W I; Q])_0$.

    Source: Cola (Ray et al. 2023), section 10.1 "FLAVA-inspired"; letters as in `FusionStyle`.

    Once per image and once per text: W I, and queries, keys and values of the first layer. The last
    layer computes [CLS] alone.

    Parameters: W 393,728, three layers of 3,152,384, a final norm 1,024, [CLS] 512: 9,852,416.
    Table 5 says 9.9M. The paper does not state the number of layers; three give its count, two
    6.7M.
    """

    encoder_layers = 3
    decoder_layers = 0
    encoders = ("encoder",)
    decoders = ()

    @override
    def fuse(self, image: PooledTokens, text: PooledTokens, query: ClsTokens) -> ClsOutputs:
        # [CLS] is the same for all pairs, so it is packed once and repeated.
        packed = self.encoder.pack(query)
        cls = Tokens.full(packed.expand(len(image), -1, -1))
        states, mask = side_by_side(cls, image.tokens, text.tokens)
        return self.encoder.first_from_packed(states, mask)

    @override
    def tokens_per_layer(self, image_tokens: int, text_tokens: int) -> list[int]:
        early = len(self.encoder.layers) - 1
        both = image_tokens + text_tokens
        return [1 + both] * early + [1]
