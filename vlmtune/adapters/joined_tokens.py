"""The tokens of a fusion encoder before its last blocks, which new layers replace.

In: the features that a backbone's fusion takes. Out: patches and words that have seen each other.
Never: a trained weight.
"""

from vlmtune.backbones.advice import backbones_with
from vlmtune.backbones.base import Backbone, Fusion
from vlmtune.errors import UserError
from vlmtune.types import Tokens


class JoinedTokens:
    """Runs a backbone's frozen fusion up to its last `replaced` blocks.

    It is not a module, so the backbone's weights keep one name each.

    Args:
        backbone: One whose fusion reads patches and words in one sequence.
        replaced: Number of last blocks that are left out.

    Attributes:
        width: w of the tokens.

    Raises:
        UserError: The backbone has no such fusion, or fewer blocks.
    """

    def __init__(self, backbone: Backbone, replaced: int) -> None:
        fusion = backbone.fusion
        if fusion is None or not fusion.width:
            name = type(backbone).__name__
            raise UserError(
                f"expected a backbone whose multimodal blocks read patches and words together, got "
                f"{name}: choose {backbones_with('joined')}"
            )
        if replaced > len(fusion.blocks):
            raise UserError(
                f"expected at most {len(fusion.blocks)} blocks to replace, got {replaced}: lower "
                "`replaces`"
            )
        self.fusion: Fusion = fusion
        self.width, self.replaced = fusion.width, replaced

    def read(self, image: Tokens, text: Tokens) -> tuple[Tokens, Tokens]:
        """Returns the patches and the words of prepared image i with prepared text i."""
        return self.fusion.joined(image, text, self.replaced)
