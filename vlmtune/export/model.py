"""A backbone with its adapter, as a person uses it: `vlmtune.load(...)` gives one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Picture, Scorer
from vlmtune.types import ImageRef

Images = Sequence[str | Path | Image.Image] | str | Path | Image.Image
Texts = Sequence[str] | str


class Model:
    """A backbone and an adapter, ready to score images against captions.

    Images are paths or PIL images, captions are strings; each argument takes one or a list. What
    was encoded is kept, so asking again costs little, and dropped after `keep` images and captions.

    Args:
        backbone: The backbone.
        adapter: The adapter, attached to it and loaded.
        keep: After how many images and captions what is kept is dropped.
        provenance: Where the weights come from, as far as an export or a checkpoint tells: a
            mapping with `data`, `config`, `seed` and `seconds` of the training, and more.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        keep: int = 2000,
        provenance: Any = None,
    ) -> None:
        # What a file says may be anything.
        self.provenance = dict(provenance) if isinstance(provenance, Mapping) else {}
        self.backbone, self.adapter, self.keep = backbone.eval(), adapter.eval(), keep
        self._scorer, self._asked = Scorer(backbone, adapter), 0

    def score(self, images: Images, texts: Texts) -> Float[Tensor, "N M"]:
        """Scores N images against M captions; higher is a better fit.

        Raises:
            UserError: An image cannot be read or a caption has no words.
        """
        pictures, captions = _pictures(images), _captions(texts)
        return self._for(len(pictures) + len(captions))(pictures, captions)

    def rank(self, query: str, images: Images) -> list[tuple[int, float]]:
        """Returns `(position in images, score)` of every image, best first; ties keep their order.

        Raises:
            UserError: An image cannot be read or the query has no words.
        """
        scores = self.score(images, query)[:, 0].tolist()
        return sorted(enumerate(scores), key=lambda item: -item[1])

    def encode_image(self, images: Images) -> Float[Tensor, "n d"]:
        """Returns one normalised embedding per image.

        Raises:
            UserError: An image cannot be read, or the adapter is joint and has no embeddings.
        """
        self._check_dual()
        pictures = _pictures(images)
        return normalize(self._for(len(pictures)).embed_images(pictures), dim=-1)

    def encode_text(self, texts: Texts) -> Float[Tensor, "n d"]:
        """Returns one normalised embedding per caption.

        Raises:
            UserError: A caption has no words, or the adapter is joint and has no embeddings.
        """
        self._check_dual()
        captions = _captions(texts)
        return normalize(self._for(len(captions)).embed_texts(captions), dim=-1)

    def _for(self, items: int) -> Scorer:
        if self._asked > self.keep:
            self._scorer, self._asked = Scorer(self.backbone, self.adapter), 0
        self._asked += items
        return self._scorer

    def _check_dual(self) -> None:
        if not isinstance(self.adapter, DualAdapter):
            raise UserError(
                f"expected an adapter with embeddings, got {type(self.adapter).__name__}, a joint "
                "one that reads image and text together: use score or rank"
            )


def _pictures(images: Images) -> list[Picture]:
    several = [images] if isinstance(images, str | Path | Image.Image) else images
    return [x if isinstance(x, Image.Image) else ImageRef(Path(x)) for x in several]


def _captions(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
