"""A model as an index uses it: vectors that recall images, and pairs that are scored again.

In: pixels of images, captions. Out: normalised vectors, prepared images, scores.
Never: gradients, or a file.

A dual adapter recalls by its own embeddings. A joint adapter recalls by vectors that approximate
its score, else by the embeddings of its backbone, and scores the recalled images again.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.adapters.base import DualAdapter, JointAdapter
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.errors import UserError
from vlmtune.model.model import Model
from vlmtune.storage.folder import digest
from vlmtune.types import Pixels, Pooled, Rows


class IndexEncoder:
    """The two stages of a search with one model.

    Attributes:
        dual: Gives the vectors: the model's adapter, or the backbone as it is.
        joint: Scores recalled images; None if the model's adapter is dual.

    Raises:
        UserError: The adapter is joint and the backbone has no embeddings to recall with.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.backbone = model.backbone
        # A joint adapter may have a dual one inside that scores in its place.
        adapter = model.adapter.scoring
        self.joint = adapter if isinstance(adapter, JointAdapter) else None
        self.dual = adapter if isinstance(adapter, DualAdapter) else self._zero_shot()

    def _zero_shot(self) -> DualAdapter:
        # A joint adapter has no vectors of images alone, so its backbone gives them.
        dual = ZeroShot()
        reason = self.backbone.fits(dual.image_input, "image")
        reason = reason or self.backbone.fits(dual.text_input, "text")
        if self.joint is None or reason:
            names = f"{type(self.model.adapter).__name__} on {type(self.backbone).__name__}"
            why = f" ({reason})" if reason else ""
            raise UserError(
                f"expected a model with embeddings to search by, got {names}{why}: choose another "
                "model"
            )
        dual.attach(self.backbone)
        return dual.to(self.model.device).eval()

    def identity(self) -> str:
        """Returns a digest of all weights, the adapter's arguments and the preprocessing."""
        return digest([self.backbone.fingerprint, self.model.digest()])

    def encode_images(self, pixels: Pixels) -> tuple[Float[Tensor, "n d"], Rows | None]:
        """Returns normalised vectors of images and what the joint adapter prepares, on the CPU.

        A joint adapter with recall vectors has no others: they come from what it prepared.
        """
        with self.evaluation():
            pixels = pixels.to(self.model.device)
            prepared = None
            vectors = None
            if self.joint is not None:
                features = self.backbone.encode_image(pixels, self.joint.image_input)
                prepared = self.joint.prepare_image(features)
                vectors = self.joint.recall_image(prepared)
                # They are long and not stored: a shortlist computes them again from `prepared`.
                if vectors is not None and bool(torch.isfinite(vectors).all()):
                    vectors = vectors[:, :0]
            if vectors is None:
                features = self.backbone.encode_image(pixels, self.dual.image_input)
                vectors = self.dual.embed_image(features)
        if not bool(torch.isfinite(vectors).all()):
            raise UserError("expected finite embeddings, got NaN or infinity: check the weights")
        kept = None if prepared is None else prepared.to("cpu", torch.float32)
        return _normalised(vectors), kept

    def evaluation(self) -> AbstractContextManager[None]:
        """The context for the methods below. A search enters it once, as entering takes time."""
        modules = [self.backbone, self.dual]
        if self.joint is not None:
            modules.append(self.joint)
        return evaluation_mode(*modules)

    def encode_text(self, captions: Sequence[str]) -> tuple[Float[Tensor, "m d"], Rows]:
        """Returns vectors of captions, on the CPU, and the rows that `score` takes.

        The vectors are normalised unless they are recall vectors.
        """
        prepared = None
        if self.joint is not None:
            features = self.backbone.encode_text(captions, self.joint.text_input)
            prepared = self.joint.prepare_text(features.trimmed())
            vectors = self.joint.recall_text(prepared)
            if vectors is not None:
                return vectors.float().cpu(), prepared
        features = self.backbone.encode_text(captions, self.dual.text_input)
        vectors = _normalised(self.dual.embed_text(features))
        if prepared is None:  # a dual adapter scores by the vectors themselves
            prepared = Pooled(vectors)
        return vectors, prepared

    def recall_images(self, prepared: Rows) -> Float[Tensor, "n D"]:
        """Returns the recall vectors of what `encode_images` prepared, on the CPU."""
        with self.evaluation():
            assert self.joint is not None
            vectors = self.joint.recall_image(prepared.to(self.model.device))
        assert vectors is not None
        return vectors.float().cpu()

    def score(self, text: Rows, images: Rows) -> Float[Tensor, "k"]:
        """Scores k images against a caption as the model does, on the CPU.

        `text` is a row of what `encode_text` gives. Images are what `encode_images` prepares for a
        joint adapter, else `Pooled` vectors.
        """
        device = self.model.device
        if self.joint is None:
            assert isinstance(images, Pooled)
            assert isinstance(text, Pooled)
            image = images.values.to(device)
            caption = text.values.to(device)
            scores = self.dual.compare(image, caption)
            return scores[:, 0].float().cpu()
        # As many pairs at a time as the memory of the device takes.
        pair_bytes = self.joint.pair_bytes(images, text, False)
        size = self.joint.chunk_size(pair_bytes, device, training=False)
        parts = []
        for start in range(0, len(images), size):
            # (size, ...) images against the one caption.
            chunk = images[start : start + size].to(device)
            texts = text
            if not self.joint.broadcasts_text:
                # It wants the caption once for each image.
                first_row = torch.zeros(len(chunk), dtype=torch.int64, device=device)
                texts = text[first_row]
            scores = self.joint.score_pairs(chunk, texts)
            parts.append(scores.float().cpu())
        return torch.cat(parts)


def _normalised(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return normalize(vectors.float(), dim=-1).cpu()
