"""ALBEF-style fusion: a [CLS] token and the text attend to the image.

In: image tokens and text tokens. Out: a [CLS] token of each pair.
Never: an image token that sees a text.
"""

from typing_extensions import override

from vlmtune.adapters.fusion_styles.base import ClsOutputs, ClsTokens, FusionStyle, tokens_only
from vlmtune.adapters.fusion_styles.layers import Decoder, Encoder
from vlmtune.types import PooledTokens, Tokens


class Albef(FusionStyle):
    r"""$\mathrm{out} = \mathrm{Dec}([\mathrm{CLS}; \mathrm{Enc}_T(Q)], \mathrm{Enc}_I(W I))_0$.

    Source: Cola (Ray et al. 2023), section 10.1 "ALBEF-inspired"; letters as in `FusionStyle`. In a
    decoder layer [CLS] and the text attend to each other, then to the image.

    Once per image and once per text: both encoders, and the decoder's first layer up to its
    cross-attention. With one decoder layer a pair costs one token: its attention to the image
    (without key and value projections) and its feed-forward part.

    Parameters: W 393,728, two encoder layers of 3,152,384, a decoder layer 4,204,032, three final
    norms 3,072, [CLS] 512: 10,906,112. Table 5 says 10.9M.
    """

    encoders = ("image_encoder", "text_encoder")
    decoders = ("decoder",)
    image_encoder: Encoder
    text_encoder: Encoder
    decoder: Decoder

    @override
    def prepare_image(self, image: Tokens, query: ClsTokens) -> PooledTokens:
        states = self.image_encoder.all(image.values, image.mask)
        memory = self.decoder.prepare_memory(states)
        return tokens_only(image.with_values(memory))

    @override
    def prepare_text(self, text: Tokens, query: ClsTokens) -> PooledTokens:
        states = self.text_encoder.all(text.values, text.mask)
        # The text queries the image, led by its [CLS] token.
        prepared, others = self.decoder.prepare_target(query, states, text.mask)
        return PooledTokens(prepared, text.with_values(others))

    @override
    def fuse(self, image: PooledTokens, text: PooledTokens, query: ClsTokens) -> ClsOutputs:
        memory = image.tokens
        words = text.tokens
        return self.decoder.decode(
            text.pooled, words.values, words.mask, memory.values, memory.mask
        )

    @override
    def tokens_per_layer(self, image_tokens: int, text_tokens: int) -> list[int]:
        early = len(self.decoder.layers) - 1
        return [1 + text_tokens] * early + [1]
