"""A backbone with its adapter, as `vlmtune.load` returns it.

In: images and captions. Out: scores, ranks, embeddings. Never: gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import trained_values
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.weight_checks import digest
from vlmtune.config import instantiate
from vlmtune.errors import UserError
from vlmtune.evaluation.class_scorer import ClassScorer
from vlmtune.evaluation.reading import Reading, read_words
from vlmtune.evaluation.scorer import Scorer
from vlmtune.model.images import Images, Picture, as_images

Texts = Sequence[str] | str
CACHED = 2000  # images and captions, after which the cache is dropped


class Model:
    """A backbone and an adapter, ready to score images against captions.

    Images are paths, PIL images, arrays, tensors or encoded bytes, captions are strings; each
    argument takes one or a list.
    Encoded images and captions are cached, so scoring them again costs little.

    Args:
        backbone: The backbone.
        adapter: The adapter, attached to it and loaded.
        provenance: Where the weights come from, as far as the export or checkpoint records it: a
            mapping with `data`, `config`, `seed` and `seconds` of the training, and more.
        batch_size: Images or captions encoded at a time; a CPU encodes 32 images.
    """

    def __init__(
        self, backbone: Backbone, adapter: Adapter, provenance: Any = None, batch_size: int = 256
    ) -> None:
        # A file may hold anything here.
        self.provenance = dict(provenance) if isinstance(provenance, Mapping) else {}
        self.backbone = backbone.eval()
        self.adapter = adapter.eval()
        self.batch_size = batch_size
        self._scorer = self.scorer()

    def __repr__(self) -> str:
        return (
            f"Model({type(self.adapter).__name__} on {type(self.backbone).__name__} "
            f"{self.backbone.title!r}, {self.trained_parameters:,} trained parameters, "
            f"{self.device})"
        )

    @property
    def untrained(self) -> bool:
        """Whether this is a backbone as it was loaded, without a trained adapter."""
        return isinstance(self.adapter, ZeroShot)

    @property
    def embeds(self) -> Adapter:
        """What embeds images: the adapter, or the contrastive side of a joint one."""
        # Fusion tuning trains both scores at once.
        return getattr(self.adapter, "contrast", None) or self.adapter

    @property
    def trained_parameters(self) -> int:
        """Number of the parameters that were trained."""
        if self.untrained:
            return 0
        return trained_values(self.backbone, self.adapter)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.backbone.parameters()).device

    @property
    def preprocess(self) -> Callable[[Image.Image], Float[Tensor, "3 height width"]]:
        """What turns an RGB image into the pixels that the backbone encodes."""
        return self.backbone.preprocess

    def to(self, device: torch.device | str) -> "Model":
        """Moves the weights; returns the model itself."""
        self.backbone.to(device)
        self.adapter.to(device)
        return self

    def batched(self, batch_size: int) -> "Model":
        """Sets how many images, or captions, are encoded at a time; returns the model itself."""
        self.batch_size = batch_size
        self._scorer = self.scorer()
        return self

    def digest(self) -> str:
        """Returns the sha256 of the adapter's arguments and of all weights."""
        weights = nn.ModuleList([self.backbone, self.adapter])
        return digest(self.adapter.spec(), weights)

    def original(self) -> "Model":
        """Returns the backbone as it was before training, zero-shot, on the same device.

        A matching head without contrastive scores stays one, with frozen weights.
        """
        from vlmtune.adapters.matching import Matching  # few models score by fusion alone

        backbone = instantiate(self.backbone.spec(), Backbone)
        adapter = Matching() if isinstance(self.embeds, Matching) else ZeroShot()
        adapter.attach(backbone)
        return Model(backbone, adapter, batch_size=self.batch_size).to(self.device)

    def scorer(self, store: Path | None = None, batch_size: int | None = None) -> Scorer:
        """Returns a scorer with an empty cache; `store` is a folder that keeps encoded features."""
        # An image model with a classifier scores the names of its classes.
        classifies = not self.backbone.encodes_texts and self.backbone.labels
        kind = ClassScorer if classifies else Scorer
        if batch_size is None:
            batch_size = self.batch_size
        return kind(self.backbone, self.adapter, store, batch_size)

    def score(self, images: Images, texts: Texts) -> Float[Tensor, "N M"]:
        """Scores N images against M captions; higher is a better fit."""
        pictures = as_images(images)
        captions = _captions(texts)
        score = self._cache()
        return score(pictures, captions)

    def rank(self, query: str, images: Images) -> list[tuple[int, float]]:
        """Returns `(position in images, score)` of every image, best first; ties keep order."""
        scores = self.score(images, query)[:, 0]
        ranked = list(enumerate(scores.tolist()))
        # Sorting is stable, so equal scores keep the order of the images.
        ranked.sort(key=lambda item: -item[1])
        return ranked

    def encode_image(self, images: Images) -> Float[Tensor, "n d"]:
        """Returns one normalised embedding per image; a joint adapter has none."""
        self._check_dual()
        pictures = as_images(images)
        scorer = self._cache()
        return normalize(scorer.embed_images(pictures), dim=-1)

    def encode_text(self, texts: Texts) -> Float[Tensor, "n d"]:
        """Returns one normalised embedding per caption; a joint adapter has none."""
        self._check_dual()
        captions = _captions(texts)
        scorer = self._cache()
        return normalize(scorer.embed_texts(captions), dim=-1)

    def similarity(
        self, first: Float[Tensor, "N d"], second: Float[Tensor, "M d"]
    ) -> Float[Tensor, "N M"]:
        """Returns the cosines of embeddings; `score` is these times a scale, plus a bias.

        Example:
            >>> import vlmtune
            >>> model = vlmtune.load("checkpoints/scenes-clip", device="cpu")
            >>> texts = model.encode_text(["a red cube", "a blue cube"])
            >>> model.similarity(texts[:1], texts).shape
            torch.Size([1, 2])
        """
        return normalize(first, dim=-1) @ normalize(second, dim=-1).T

    def reading(self, image: Picture, caption: str) -> Reading:
        """Returns the words of a caption and which patches of an image each one reads.

        `vlmtune.report.heat.heat` draws a map over the image.

        Raises:
            UserError: The adapter does not show what it reads.

        Example:
            >>> import vlmtune
            >>> from PIL import Image
            >>> model = vlmtune.load("checkpoints/scenes-grounded-words")
            >>> reading = model.reading(Image.new("RGB", (64, 64)), "a red cube")
            >>> reading.words, tuple(reading.maps.shape)
            (('a', 'red', 'cube'), (3, 8, 8))
        """
        (picture,) = as_images(image)
        return read_words(self.backbone, self.adapter, picture, caption)

    def _cache(self) -> Scorer:
        # The scorer keeps what it encoded, so a new one frees the memory.
        if self._scorer.held > CACHED:
            self._scorer = self.scorer()
        return self._scorer

    def _check_dual(self) -> None:
        if not self._scorer.embeds:
            raise UserError(
                f"expected an adapter with embeddings, got {type(self.adapter).__name__}, which "
                "scores image and text jointly: use score or rank"
            )


def _captions(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
