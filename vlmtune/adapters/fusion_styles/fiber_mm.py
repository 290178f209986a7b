"""FIBER-MM fusion: FIBER's two directions over tokens that attended to each other.

In: image tokens and text tokens. Out: two [CLS] tokens of each pair, one of each direction.
Never: an encoder of one modality alone.
"""

from typing_extensions import override

from vlmtune.adapters.fusion_styles.base import (
    ClsOutputs,
    ClsTokens,
    JointEncoderStyle,
    side_by_side,
)
from vlmtune.adapters.fusion_styles.fiber import Fiber
from vlmtune.types import PooledTokens


class FiberMM(JointEncoderStyle, Fiber):
    r"""FIBER with one joint encoder in place of the two: $[A_I; A_T] = \mathrm{Enc}([W I; Q])$.

    Source: Cola (Ray et al. 2023), section 10.1 "FIBER-MM"; letters as in `FusionStyle`, decoders
    and [CLS] tokens as in `Fiber`.

    Once per image and once per text: W I, and queries, keys and values of the encoder's first
    layer. The last decoder layer computes [CLS] alone and projects no keys and no values.

    Parameters: W 393,728, an encoder layer 3,152,384, two decoder layers of 4,204,032, three final
    norms 3,072, [CLS] 1,024: 11,958,272. Table 5 says 12M.
    """

    encoders = ("encoder",)

    @override
    def fuse(self, image: PooledTokens, text: PooledTokens, query: ClsTokens) -> ClsOutputs:
        packed, mask = side_by_side(image.tokens, text.tokens)
        # All tokens see each other first; the decoders then read each modality's own.
        states = self.encoder.from_packed(packed, mask)
        patches = states[:, : image.token_count]
        words = states[:, image.token_count :]
        image = self.image_side(patches, image.tokens.mask, query)
        text = self.text_side(words, text.tokens.mask, query)
        return super().fuse(image, text, query)

    @override
    def tokens_per_layer(self, image_tokens: int, text_tokens: int) -> list[int]:
        joint = [image_tokens + text_tokens] * len(self.encoder.layers)
        return joint + super().tokens_per_layer(image_tokens, text_tokens)
