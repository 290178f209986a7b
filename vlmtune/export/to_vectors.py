"""A model of grounded words as a model of one vector for each image and text.

In: a model, and images where its vectors are to be short. Out: another model with the same backbone
and weights. Never: training.
"""

from collections.abc import Sequence
from pathlib import Path

from vlmtune.adapters.grounded_vectors import GroundedVectors
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.errors import UserError
from vlmtune.model.model import Model

SAMPLE = 2000  # images that are enough to show the directions in which images differ


def to_vectors(
    model: Model, frozen_weight: float, directions: int | None = None, images: Sequence[Path] = ()
) -> Model:
    """The vectors of grounded words, with this weight of the frozen score.

    With `directions` they have as many numbers besides those of the frozen model, in the directions
    in which the images differ most. Vectors get another weight, or other directions.
    """
    words = model.adapter
    lengths = {}
    if isinstance(words, GroundedVectors):
        lengths = {"image_length": words.image_length, "text_length": words.text_length}
        words = words.adapter
    if not isinstance(words, GroundedWords):
        raise UserError(
            f"expected grounded words with --vectors, got {type(words).__name__}: leave --vectors "
            "out"
        )
    whole = GroundedVectors.of(words, model.backbone, frozen_weight, None, **lengths)
    vectors = Model(model.backbone, whole, provenance=model.provenance)
    if directions is None:
        return vectors
    # Every k-th image, as those that stand together look alike.
    step = max(1, len(images) // max(SAMPLE, directions))
    sample = list(images[::step])
    if len(sample) < directions:
        raise UserError(
            f"expected at least {directions} images for as many directions, got {len(sample)}: "
            "give more with --images, or lower --directions"
        )
    short = GroundedVectors.of(words, model.backbone, frozen_weight, directions, **lengths)
    short.fit_directions(vectors.encode_image(sample))
    return Model(model.backbone, short, provenance=model.provenance)
