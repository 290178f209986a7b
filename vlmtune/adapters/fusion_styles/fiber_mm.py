"""FIBER-MM fusion: FIBER's two directions over tokens that have seen each other."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.base import parts, seen, tokens_only
from vlmtune.adapters.fusion_styles.fiber import Fiber
from vlmtune.adapters.fusion_styles.layers import Blocks
from vlmtune.types import PooledTokens


class FiberMM(Fiber):
    r"""FIBER with one joint encoder in place of the two: $[A_I; A_T] = \mathrm{Enc}([W I; Q])$.

    Source: Cola (Ray et al. 2023), section 10.1 "FIBER-MM". Its letters are ours: I are the image's
    tokens (t x v), W maps their width v to the width w of the text, Q are the text's tokens,
    Enc `encoder`; decoders and [CLS] tokens as in `Fiber`.

    Computed once per image and once per text: W I, and the queries, keys and values of the
    encoder's first layer. Decoder layers project keys and values for all but the last layer, which
    is computed for [CLS] alone.

    Parameters on CLIP ViT-B/32 (v 768, w 512, 4 heads, 2,048 hidden): W 393,728, an encoder layer
    3,152,384, two decoder layers of 4,204,032, three final norms 3,072, [CLS] 1,024: 11,958,272.
    Table 5 says 12M. MM-Adapter adds 2, MM-Pred 1,025 (it reads both tokens).
    """

    def build(
        self, blocks: Blocks, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes a joint encoder and a decoder for each modality."""
        self.encoder = blocks.encoder(encoder_layers)
        return {"encoder": self.encoder, **self.decoders(blocks, decoder_layers)}

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
        """Joint self-attention, then both directions."""
        (patches, patch_mask), (words, word_mask) = parts(image), parts(text)
        packed = torch.cat([patches, words], dim=1)
        states = self.encoder.from_packed(packed, seen(patch_mask, word_mask))
        count = patches.shape[1]
        return super().fuse(
            self.image_side(states[:, :count], patch_mask, query),
            self.text_side(states[:, count:], word_mask, query),
            query,
        )

    def rows(self, image_tokens: int, text_tokens: int) -> list[int]:
        """All tokens in the encoder, then as in FIBER."""
        both = [image_tokens + text_tokens] * len(self.encoder.layers)
        return both + super().rows(image_tokens, text_tokens)
