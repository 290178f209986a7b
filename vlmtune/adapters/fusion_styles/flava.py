"""FLAVA-style fusion: self-attention over a [CLS] token, image tokens and text tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.base import FusionStyle, parts, seen, tokens_only, with_cls
from vlmtune.adapters.fusion_styles.layers import Blocks
from vlmtune.types import PooledTokens


class Flava(FusionStyle):
    r"""$\mathrm{out} = \mathrm{Enc}([\mathrm{CLS}; W I; Q])_0$.

    Source: Cola (Ray et al. 2023), section 10.1 "FLAVA-inspired". Its letters are ours: I are the
    image's tokens (t x v), W maps their width v to the width w of the text, Q are the text's
    tokens, Enc `encoder`, [CLS] `query`.

    Computed once per image and once per text: W I, and the queries, keys and values of the first
    layer. The last layer is computed for [CLS] alone.

    Parameters on CLIP ViT-B/32 (v 768, w 512, 4 heads, 2,048 hidden): W 393,728, three layers of
    3,152,384, a final norm 1,024, [CLS] 512: 9,852,416. Table 5 says 9.9M. The paper does not say
    how many layers; three give its count, two 6.7M. MM-Adapter adds 2, MM-Pred 513.
    """

    encoder_layers = 3
    decoder_layers = 0

    def build(
        self, blocks: Blocks, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes one joint encoder."""
        del decoder_layers  # has none
        self.encoder = blocks.encoder(encoder_layers)
        return {"encoder": self.encoder}

    def prepare_image(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """Queries, keys and values of the first layer, beside the tokens."""
        return tokens_only(self.encoder.packed(tokens), mask)

    prepare_text = prepare_image

    def fuse(
        self, image: PooledTokens, text: PooledTokens, query: Float[Tensor, "1 c w"]
    ) -> Float[Tensor, "P c w"]:
        """Self-attention over all tokens, of which [CLS] is returned."""
        (patches, patch_mask), (words, word_mask) = parts(image), parts(text)
        cls = self.encoder.packed(query).expand(len(patches), -1, -1)
        tokens = torch.cat([cls, patches, words], dim=1)
        return self.encoder.first_from_packed(tokens, seen(with_cls(patch_mask), word_mask))

    def rows(self, image_tokens: int, text_tokens: int) -> list[int]:
        """All tokens and [CLS], in the last layer [CLS] alone."""
        return [1 + image_tokens + text_tokens] * (len(self.encoder.layers) - 1) + [1]
