"""MDETR-style fusion: a [CLS] token reads image and text tokens that have seen each other."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.base import FusionStyle, parts, seen, tokens_only
from vlmtune.adapters.fusion_styles.layers import Blocks
from vlmtune.types import PooledTokens


class Mdetr(FusionStyle):
    r"""$A = \mathrm{Enc}([W I; Q])$, $\mathrm{out} = \mathrm{Dec}([\mathrm{CLS}], A)$.

    Source: Cola (Ray et al. 2023), section 10.1 "MDETR-inspired", and section 4; the style of its
    main results. Its letters are ours: I are the image's tokens (t x v), W maps their width v to
    the width w of the text, Q are the text's tokens, Enc `encoder`, Dec `decoder`, [CLS] `query`.

    Computed once per image and once per text: W I, and the queries, keys and values of the first
    encoder layer. [CLS] is one token and the same for all pairs, so that the decoder projects no
    key and no value (see `attention.attend_folded`).

    Parameters on CLIP ViT-B/32 (v 768, w 512, 4 heads, 2,048 hidden): W 393,728, encoder layer
    3,152,384, decoder layer 4,204,032, two final norms 2,048, [CLS] 512: 7,752,704. Table 5 says
    7.8M. MM-Adapter adds 2 (scale and offset of the cosine), MM-Pred 513 (its linear layer).
    """

    def build(
        self, blocks: Blocks, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes a joint encoder and the decoder of [CLS]."""
        self.encoder, self.decoder = blocks.encoder(encoder_layers), blocks.decoder(decoder_layers)
        return {"encoder": self.encoder, "decoder": self.decoder}

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
        """Joint self-attention, then [CLS] reads all tokens."""
        (patches, patch_mask), (words, word_mask) = parts(image), parts(text)
        mask = seen(patch_mask, word_mask)
        states = self.encoder.from_packed(torch.cat([patches, words], dim=1), mask)
        if self.decoder.training:  # dropout hides other parts of it for each pair
            query = query.expand(len(states), -1, -1)
        return self.decoder.read(query, states, mask)

    def rows(self, image_tokens: int, text_tokens: int) -> list[int]:
        """All tokens in the encoder, one in the decoder."""
        both = image_tokens + text_tokens
        return [both] * len(self.encoder.layers) + [1] * len(self.decoder.layers)
