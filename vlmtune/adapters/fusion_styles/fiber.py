"""FIBER-style fusion: the text attends to the image and the image to the text."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.base import FusionStyle, parts, with_cls
from vlmtune.adapters.fusion_styles.layers import Blocks, Decoder
from vlmtune.types import PooledTokens, Tokens


class Fiber(FusionStyle):
    r"""Two [CLS] tokens, one with the text reading the image, one with the image reading the text.

    With $A_I = \mathrm{Enc}_I(W I)$ and $A_T = \mathrm{Enc}_T(Q)$:
    $\mathrm{out}_T = \mathrm{Dec}_T([\mathrm{CLS}_T; A_T], A_I)_0$,
    $\mathrm{out}_I = \mathrm{Dec}_I([\mathrm{CLS}_I; A_I], A_T)_0$.

    Source: Cola (Ray et al. 2023), section 10.1 "FIBER-inspired". Its letters are ours: I are the
    image's tokens (t x v), W maps their width v to the width w of the text, Q are the text's
    tokens, $\mathrm{Enc}_I$ `image_encoder`, $\mathrm{Dec}_T$ `text_decoder` and so on, the [CLS]
    tokens `query`, that of the text first. Both directions read the encoders' output.

    Computed once per image and once per text: both encoders, and both decoders' first layers up to
    their cross-attention. With one decoder layer what is left for a pair is two tokens.

    Parameters on CLIP ViT-B/32 (v 768, w 512, 4 heads, 2,048 hidden): W 393,728, two encoder layers
    of 3,152,384, two decoder layers of 4,204,032, four final norms 4,096, [CLS] 1,024: 15,111,680.
    Table 5 says 15M. MM-Adapter adds 2, MM-Pred 1,025 (it reads both tokens).
    """

    queries = 2

    def build(
        self, blocks: Blocks, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes an encoder and a decoder for each modality."""
        self.image_encoder = blocks.encoder(encoder_layers)
        self.text_encoder = blocks.encoder(encoder_layers)
        return {
            "image_encoder": self.image_encoder,
            "text_encoder": self.text_encoder,
            **self.decoders(blocks, decoder_layers),
        }

    def decoders(self, blocks: Blocks, layers: int) -> dict[str, nn.Module]:
        """Makes the decoders of both directions."""
        self.image_decoder, self.text_decoder = blocks.decoder(layers), blocks.decoder(layers)
        return {"image_decoder": self.image_decoder, "text_decoder": self.text_decoder}

    def prepare_image(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """Image tokens that have seen each other, ready to read and to be read."""
        return self.image_side(self.image_encoder.all(tokens, mask), mask, query)

    def prepare_text(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """Text tokens that have seen each other, ready to read and to be read."""
        return self.text_side(self.text_encoder.all(tokens, mask), mask, query)

    def image_side(
        self,
        states: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """What the decoders need of encoded images; `pooled` is that of [CLS]."""
        return _side(states, mask, query[:, 1:], self.image_decoder, self.text_decoder)

    def text_side(
        self,
        states: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """What the decoders need of encoded texts; `pooled` is that of [CLS]."""
        return _side(states, mask, query[:, :1], self.text_decoder, self.image_decoder)

    def fuse(
        self, image: PooledTokens, text: PooledTokens, query: Float[Tensor, "1 c w"]
    ) -> Float[Tensor, "P c w"]:
        """Each side reads the other; the outputs are that of the text and that of the image."""
        return torch.cat(
            [_read(self.text_decoder, text, image), _read(self.image_decoder, image, text)], dim=1
        )

    def rows(self, image_tokens: int, text_tokens: int) -> list[int]:
        """[CLS] and the tokens of each side, in the last layers [CLS] alone."""
        early = len(self.text_decoder.layers) - 1
        return [1 + text_tokens, 1 + image_tokens] * early + [1, 1]


def _side(
    states: Float[Tensor, "n t w"],
    mask: Bool[Tensor, "n t"],
    query: Float[Tensor, "1 1 w"],
    own: Decoder,
    other: Decoder,
) -> PooledTokens:
    """Target of its own decoder and, after it, memory of the other one."""
    tokens = torch.cat([query.expand(len(states), -1, -1), states], dim=1)
    cls, others = own.target(tokens, with_cls(mask))
    values = torch.cat([others, other.memory(states)], dim=2)
    return PooledTokens(cls, Tokens(values, mask))


def _read(decoder: Decoder, target: PooledTokens, memory: PooledTokens) -> Float[Tensor, "P 1 w"]:
    (others, mask), (packed, memory_mask) = parts(target), parts(memory)
    width = decoder.target_widths()[1]  # both sides' decoders have as many layers
    return decoder.decode(
        target.pooled, others[..., :width], with_cls(mask), packed[..., width:], memory_mask
    )
