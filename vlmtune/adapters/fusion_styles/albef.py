"""ALBEF-style fusion: a [CLS] token and the text attend to the image."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.base import FusionStyle, parts, tokens_only, with_cls
from vlmtune.adapters.fusion_styles.layers import Blocks
from vlmtune.types import PooledTokens, Tokens


class Albef(FusionStyle):
    r"""$\mathrm{out} = \mathrm{Dec}([\mathrm{CLS}; \mathrm{Enc}_T(Q)], \mathrm{Enc}_I(W I))_0$.

    Source: Cola (Ray et al. 2023), section 10.1 "ALBEF-inspired". Its letters are ours: I are the
    image's tokens (t x v), W maps their width v to the width w of the text, Q are the text's
    tokens, $\mathrm{Enc}_I$ `image_encoder`, $\mathrm{Enc}_T$ `text_encoder`, Dec `decoder`,
    [CLS] `query`. In a decoder layer [CLS] and the text attend to each other, then to the image.

    Computed once per image and once per text: both encoders, and the decoder's first layer up to
    its cross-attention. With one decoder layer what is left for a pair is one token: its attention
    to the image (without key and value projections) and its feed-forward part.

    Parameters on CLIP ViT-B/32 (v 768, w 512, 4 heads, 2,048 hidden): W 393,728, two encoder layers
    of 3,152,384, a decoder layer 4,204,032, three final norms 3,072, [CLS] 512: 10,906,112. Table 5
    says 10.9M. MM-Adapter adds 2, MM-Pred 513.
    """

    def build(
        self, blocks: Blocks, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes an encoder for each modality and the decoder of the text."""
        self.image_encoder = blocks.encoder(encoder_layers)
        self.text_encoder = blocks.encoder(encoder_layers)
        self.decoder = blocks.decoder(decoder_layers)
        return {
            "image_encoder": self.image_encoder,
            "text_encoder": self.text_encoder,
            "decoder": self.decoder,
        }

    def prepare_image(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """Image tokens that have seen each other, with what the decoder reads of them."""
        return tokens_only(self.decoder.memory(self.image_encoder.all(tokens, mask)), mask)

    def prepare_text(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """[CLS] (`pooled`) and text tokens that have seen each other, ready to read an image."""
        states = self.text_encoder.all(tokens, mask)
        states = torch.cat([query.expand(len(states), -1, -1), states], dim=1)
        cls, others = self.decoder.target(states, with_cls(mask))
        return PooledTokens(cls, Tokens(others, mask))

    def fuse(
        self, image: PooledTokens, text: PooledTokens, query: Float[Tensor, "1 c w"]
    ) -> Float[Tensor, "P c w"]:
        """[CLS] and, but for the last layer, text tokens read the image."""
        (memory, patch_mask), (others, word_mask) = parts(image), parts(text)
        return self.decoder.decode(text.pooled, others, with_cls(word_mask), memory, patch_mask)

    def rows(self, image_tokens: int, text_tokens: int) -> list[int]:
        """[CLS] and the text, in the last layer [CLS] alone."""
        return [1 + text_tokens] * (len(self.decoder.layers) - 1) + [1]
