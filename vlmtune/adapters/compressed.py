"""Compressed: a few learned tokens of an image, in front of a joint adapter that reads tokens.

In: patch tokens, and the texts of the joint adapter. Out: its scores of chosen pairs.
Never: a score of its own, or a patch that the joint adapter sees.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, JointAdapter, PairScores, Vectors
from vlmtune.adapters.fusion_styles.attention import split_heads
from vlmtune.adapters.fusion_styles.layers import check_heads, initialise
from vlmtune.adapters.matching import Matching
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.types import Features, Rows, Tokens


class Compressed(JointAdapter[Tokens, Features, Rows]):
    r"""The scores of a joint adapter that reads k tokens Y in place of an image's patches X.

    $H = \mathrm{MHA}(Q, X W_K, X W_V)$ and $Y = (H + \mathrm{MLP}(\mathrm{LN}(H))) W$ with k
    learned queries Q (k x v), X (t x v) the real patches, and matrices $W_K$, $W_V$, W (v x v)
    without biases. Head h reads its part of the width v,
    $H_h = \mathrm{softmax}(Q_h (X W_K)_h^\top / \sqrt{v / heads}) (X W_V)_h$, and the heads stand
    side by side. The MLP has two layers and GELU.

    An index stores what the joint adapter prepares from the k tokens of an image. With `MMAdapter`
    on CLIP ViT-B/32 this takes 16 x 2,052 bytes (32.8 kB) in place of 49 x 2,052 (100.5 kB): query,
    key, value and token in 512 bytes each, and a scale. Scoring a pair costs less too: it has only
    k tokens and the text. The compressor has 6,505,728 parameters.

    Choose it where an index of a joint adapter gets too large, or its search too slow.

    - Requirements: a joint adapter that reads patches without their positions in the image.
    - Recommended: `ITM(ranking=0)` with `HardPairs`, as in the paper, or what the joint adapter
      recommends; `tokens: 64` where images have hundreds of patches.
    - Relations: `MMAdapter` and `MMPred` can be inside. `GroundedWords` and `Matching` cannot:
      they read states of the image tower, the former with a location for each patch.
    - Config: `--model.adapter compressed`.

    Source: EDJE (Taraday, Wagner, Baskin; ICLR 2026; arXiv 2510.06820), with the paper's letters Q,
    X, H, Y and W. In the paper 576 patches become 64 tokens, 49 kB of 16-bit numbers instead of 442
    kB. Heads, the width of the MLP, k = 16 and the initialisation (Q normal, matrices Xavier) are
    ours. Departures: the joint adapter is any adapter of vlmtune and starts at random, where the
    paper has a pre-trained MiniLM. Of the paper's losses, vlmtune has matching and, with
    `contrast`, the recovery of the text's embedding, which here is the mean of the frozen words.
    Left out are masked language modelling and the distillation from the scores of an uncompressed
    model (`Distillation` is one from the frozen backbone).

    Args:
        adapter: The joint adapter.
        tokens: k.
        heads: Attention heads, a divisor of v.
        hidden: Width of the MLP, as a multiple of v.
        contrast: Whether there are contrastive scores, $e^{\tau} \cos(\bar y_i V, t_j)$ of the mean
            $\bar y_i$ of Y, a trained matrix V (v x w) and the mean $t_j$ of a text's frozen words,
            which an objective such as `TextRecovery` must then read. `HardPairs` chooses by them in
            place of the frozen backbone's scores.

    Example:
        >>> from vlmtune.adapters.mm_adapter import MMAdapter
        >>> Compressed(MMAdapter(), tokens=8).spec()["init_args"]["tokens"]
        8
    """

    def __init__(
        self,
        adapter: JointAdapter,
        tokens: PositiveInt = 16,
        heads: PositiveInt = 4,
        hidden: PositiveInt = 4,
        contrast: bool = False,
    ) -> None:
        super().__init__()
        self.adapter = adapter
        self.tokens = tokens
        self.heads = heads
        self.hidden = hidden
        self.contrast = MeanToken(self.compress) if contrast else None

    @override
    def attach(self, backbone: Backbone) -> None:
        self.adapter.attach(backbone)
        # Some adapters know what they read, and how, only once they are attached.
        self.image_input = self.adapter.image_input
        self.text_input = self.adapter.text_input
        if self.image_input.kind != "tokens" or isinstance(self.adapter, Matching):
            raise UserError(
                "expected a joint adapter whose new layers read patch tokens, got "
                f"{type(self.adapter).__name__}, which needs the image as the backbone gives it: "
                "choose MMAdapter or MMPred with replaces 0, or leave Compressed out"
            )
        super().attach(backbone)
        self.broadcasts_image = self.adapter.broadcasts_image
        self.broadcasts_text = self.adapter.broadcasts_text
        self.memory = self.adapter.memory
        self.training_memory = self.adapter.training_memory
        width = backbone.image_width
        check_heads(width, self.heads)
        self.queries = nn.Parameter(torch.randn(self.tokens, width))
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        hidden = self.hidden * width
        self.norm = nn.LayerNorm(width)
        widen = nn.Linear(width, hidden)
        narrow = nn.Linear(hidden, width)
        self.mlp = nn.Sequential(widen, nn.GELU(), narrow)
        self.project = nn.Linear(width, width, bias=False)
        initialise([self.keys_values, self.mlp, self.project])
        if self.contrast is not None:
            self.contrast.image_input = self.image_input
            self.contrast.text_input = self.text_input
            self.contrast.attach(backbone)

    def compress(self, image: Tokens) -> Tokens:
        """Y, the k tokens that stand for the patches of each image."""
        keys, values = self.keys_values(image.values).chunk(2, dim=2)
        queries = self.queries.expand(len(image), -1, -1)
        read = scaled_dot_product_attention(
            split_heads(queries, self.heads),
            split_heads(keys, self.heads),
            split_heads(values, self.heads),
            # One mask for all heads and all queries: no query reads padding.
            attn_mask=image.mask[:, None, None],
        )
        heads_joined = read.transpose(1, 2).flatten(2)
        fed = self.mlp(self.norm(heads_joined))
        tokens = self.project(heads_joined + fed)
        return Tokens.full(tokens)

    @override
    def prepare_image(self, image: Tokens) -> Rows:
        return self.adapter.prepare_image(self.compress(image))

    @override
    def prepare_text(self, text: Features) -> Rows:
        return self.adapter.prepare_text(text)

    @override
    def score_pairs(self, image: Rows, text: Rows) -> PairScores:
        return self.adapter.score_pairs(image, text)

    @override
    def recall_image(self, image: Rows) -> Vectors | None:
        return self.adapter.recall_image(image)

    @override
    def recall_text(self, text: Rows) -> Float[Tensor, "m d"] | None:
        return self.adapter.recall_text(text)

    @override
    def pair_bytes(self, image: Rows, text: Rows, training: bool) -> int:
        return self.adapter.pair_bytes(image, text, training)

    @override
    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        return self.adapter.lr_scales()


class MeanToken(DualAdapter[Tokens, Tokens]):
    """Contrastive scores of the mean of an image's compressed tokens with a text's frozen words."""

    def __init__(self, compress: Callable[[Tokens], Tokens]) -> None:
        super().__init__()
        self._compress = compress

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        self.special = backbone.text_special
        self.recover = nn.Linear(backbone.image_width, backbone.text_width, bias=False)
        initialise([self.recover])

    @override
    def embed_image(self, image: Tokens) -> Vectors:
        tokens = self._compress(image)
        mean = tokens.values.mean(dim=1)
        return self.recover(mean)

    @override
    def embed_text(self, text: Tokens) -> Vectors:
        words = normalize(text.values, dim=-1)
        return masked_mean(words, word_mask(text.mask, self.special))
