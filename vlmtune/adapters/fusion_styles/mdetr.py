"""MDETR-style fusion: a [CLS] token reads image and text tokens that attended to each other.

In: image tokens and text tokens. Out: the [CLS] tokens of each pair, one by default.
Never: an image or text token that sees [CLS].
"""

from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.adapters.fusion_styles.base import (
    ClsOutputs,
    ClsTokens,
    JointEncoderStyle,
    side_by_side,
)
from vlmtune.adapters.fusion_styles.layers import Decoder
from vlmtune.types import PooledTokens


class Mdetr(JointEncoderStyle):
    r"""$A = \mathrm{Enc}([W I; Q])$, $\mathrm{out} = \mathrm{Dec}([\mathrm{CLS}], A)$.

    Source: Cola (Ray et al. 2023), section 10.1 "MDETR-inspired", and section 4: the style of its
    main results. Letters as in `FusionStyle`.

    Once per image and once per text: W I, and queries, keys and values of the first encoder layer.
    A single [CLS] is the same for all pairs, so the decoder projects no keys and no values (see
    `attention.attend_folded`).

    Parameters: W 393,728, encoder layer 3,152,384, decoder layer 4,204,032, two final norms 2,048,
    [CLS] 512: 7,752,704. Table 5 says 7.8M.

    Args:
        cls_tokens: Number of [CLS] tokens, each with its own start. They also attend to each other,
            and MM-Adapter averages their scores (ours). Section 10.1 tried 100, which learned the
            same thing.
    """

    encoders = ("encoder",)
    decoders = ("decoder",)
    decoder: Decoder

    def __init__(self, cls_tokens: PositiveInt = 1) -> None:
        self.queries = cls_tokens

    @override
    def fuse(self, image: PooledTokens, text: PooledTokens, query: ClsTokens) -> ClsOutputs:
        packed, mask = side_by_side(image.tokens, text.tokens)
        states = self.encoder.from_packed(packed, mask)
        if self.decoder.training:  # dropout differs from pair to pair
            query = query.expand(len(states), -1, -1)
        return self.decoder.read(query, states, mask)

    @override
    def tokens_per_layer(self, image_tokens: int, text_tokens: int) -> list[int]:
        both = image_tokens + text_tokens
        # Several [CLS] read keys and values of all tokens.
        read = 1 if self.queries == 1 else self.queries + both
        encoded = [both] * len(self.encoder.layers)
        return encoded + [read] * len(self.decoder.layers)
