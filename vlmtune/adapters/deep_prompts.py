"""Deep prompts in both towers, coupled as in MaPLe or separate as in visual prompt tuning.

In: states before the first block, or pooled embeddings of a side without prompts.
Out: scores of all pairs. Never: a change of the towers' weights.
"""

from typing import Any

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Vectors
from vlmtune.adapters.prompting import DEVIATION, check_room, insert, word_embeddings
from vlmtune.adapters.towers import check_blocks, image_tower, text_tower
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pooled, Tokens


class DeepPrompts(DualAdapter[Features, Features]):
    r"""Trains m prompt tokens at the input of each of the first J blocks; towers stay frozen.

    Texts: the first block gets $[s, P_0, y]$ (s the start token, y the words, $P_k$ m x $w_T$), and
    $P_k$ replaces the outputs of $P_{k-1}$ before block k = 1, ..., J - 1. Images:
    $[x, \tilde P_0]$ with x the class token and patches and $\tilde P_k$ (m x $w_I$), replaced
    likewise and removed before pooling. Coupled, $\tilde P_k = F_k(P_k)$ with a linear $F_k$ for
    each block. Scores are $e^{\tau} \cos + b$ of the two embeddings.

    Texts too long for the tower lose their last words, as they do in its tokenizer.

    Choose it where few parameters should reach all blocks of both towers.

    - Requirements: towers that run block by block; each step runs the towers that have prompts.
    - Recommended: `init: a photo of a`; `text: false` is visual prompt tuning.
    - Relations: `ContextPrompts` has prompts before the first text block alone; `LoRA` changes
      weights.
    - Config: `--model.adapter deep_prompts`.

    Source: coupled, Khattak et al. 2023 (MaPLe), "Multi-modal prompt learning", section 3.2: their
    b is our m, J is the same (9 of 12 in the released configuration, with m = 2 and "a photo of
    a"), $\mathcal{F}_k$ is $F_k$; each $F_k$ starts as `nn.Linear` does. Uncoupled with
    `text=False`, Jia et al. 2022 (VPT), section 3.2, "VPT-deep", with prompts after the patches,
    which without positions is the same. Random prompts have a standard deviation of 0.02.

    Args:
        length: m.
        depth: J; None for all blocks of the tower (of the shorter tower if coupled).
        image: Whether images have prompts.
        text: Whether texts have prompts.
        coupled: Whether image prompts are computed from text prompts, where there are both.
        init: Words whose first m embeddings $P_0$ starts as; None for random ones.
        options: Options of `DualAdapter`.

    Example:
        >>> DeepPrompts(text=False).text_input.kind
        'pooled'
    """

    identity_at_init = False

    def __init__(
        self,
        length: PositiveInt = 2,
        depth: PositiveInt | None = None,
        image: bool = True,
        text: bool = True,
        coupled: bool = True,
        init: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.length = length
        self.depth = depth
        self.coupled = coupled and image and text
        self.init = init
        self.on_image = image
        self.on_text = text
        image_kind = "state" if image else "pooled"
        text_kind = "words" if text else "pooled"
        # The number of the layer before the first block is known once the tower is.
        self.image_input = FeatureSpec(image_kind)
        self.text_input = FeatureSpec(text_kind)

    @override
    def attach(self, backbone: Backbone) -> None:
        towers: list[Tower] = []
        if self.on_image:
            self.image_tower = image_tower(backbone, optional=not self.coupled)
            before_first = -(self.image_tower.layers + 1)
            self.image_input = FeatureSpec("state", before_first)
            towers.append(self.image_tower)
        if self.on_text:
            self.text_tower = text_tower(backbone)
            check_room(self.text_tower, self.length, backbone.text_special)
            towers.append(self.text_tower)
        super().attach(backbone)
        self.special = backbone.text_special
        # Coupled prompts of a block need the same block in both towers.
        fewest = min((tower.layers for tower in towers), default=0)
        depth = self.depth
        if depth is not None:
            check_blocks(depth, fewest, "depth")
        elif self.coupled:
            depth = fewest
        if self.on_text:
            # Without coupling each tower may have prompts in all of its own blocks.
            text_depth = depth or self.text_tower.layers
            prompts = self._random(text_depth, self.text_tower)
            self.text = nn.Parameter(prompts)
            if self.init is not None:
                self._start_as(self.init)
        if self.on_image:
            image_depth = depth or self.image_tower.layers
            if self.coupled:
                widths = (self.text_tower.width, self.image_tower.width)
                self.coupling = nn.ModuleList()
                for _ in range(image_depth):
                    self.coupling.append(nn.Linear(*widths))
            else:
                prompts = self._random(image_depth, self.image_tower)
                self.image = nn.Parameter(prompts)

    def _random(self, depth: int, tower: Tower) -> Float[Tensor, "depth m w"]:
        return DEVIATION * torch.randn(depth, self.length, tower.width)

    def _start_as(self, init: str) -> None:
        # Deeper prompts stay random, as in MaPLe.
        words = word_embeddings(self.text_tower, init, self.special)
        if len(words) < self.length:
            raise UserError(
                f"expected words of at least {self.length} tokens for `init`, got {init!r} with "
                f"{len(words)}: lengthen it or lower `length`"
            )
        first = words[: self.length]
        self.text.data[0] = first.to(self.text)

    def image_prompts(self) -> Float[Tensor, "depth m w"]:
        """The prompts of the images for each block."""
        if not self.coupled:
            return self.image
        pairs = zip(self.coupling, self.text, strict=True)
        return torch.stack([layer(prompts) for layer, prompts in pairs])

    @override
    def embed_image(self, image: Features) -> Vectors:
        if isinstance(image, Pooled):
            return image.values
        prompts = self.image_prompts()
        patches = image.token_count
        # Prompts stand after the patches: without positions the order does not matter.
        repeated = _repeated(prompts[0], len(image))
        first = Tokens.full(repeated)
        values = torch.cat([image.values, first.values], dim=1)
        mask = torch.cat([image.mask, first.mask], dim=1)  # images that differ in shape are padded
        state = Tokens(values, mask)
        state = _deep(self.image_tower, state, prompts, patches)
        return self.image_tower.finish(state.cut(patches))

    @override
    def embed_text(self, text: Features) -> Vectors:
        if isinstance(text, Pooled):
            return text.values
        tower = self.text_tower
        first = _repeated(self.text[0], len(text))
        words = insert(text, first, tower, self.special)
        state = tower.start(words)
        # Prompts stand behind the start token in every block.
        lead, _ = self.special
        state = _deep(tower, state, self.text, lead)
        return tower.finish(state)


def _deep(tower: Tower, state: Tokens, prompts: Float[Tensor, "depth m w"], at: int) -> Tokens:
    """Runs all blocks; from the second on, each of the first `depth` gets its prompts at `at`."""
    # The first block reads prompts that the caller has put among the tokens.
    depth, length, _ = prompts.shape
    end = at + length
    state = tower.run(state, 0, 1)
    # The outputs of a block's prompts are dropped, and the next prompts take their positions.
    for number in range(1, depth):
        before = state.values[:, :at]
        after = state.values[:, end:]
        learned = _repeated(prompts[number], len(state))
        learned = learned.to(before.dtype)
        values = torch.cat([before, learned, after], dim=1)
        prompted = Tokens(values, state.mask)
        state = tower.run(prompted, number, number + 1)
    return tower.run(state, depth, tower.layers)


def _repeated(prompts: Float[Tensor, "m w"], rows: int) -> Float[Tensor, "n m w"]:
    return prompts.expand(rows, -1, -1)
