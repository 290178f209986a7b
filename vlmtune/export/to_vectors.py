"""A model of grounded words as a model of one vector for each image and text.

In: a model. Out: another one with the same backbone and weights. Never: training.
"""

from vlmtune.adapters.grounded_vectors import GroundedVectors
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.errors import UserError
from vlmtune.model.model import Model


def to_vectors(model: Model, frozen_weight: float) -> Model:
    """The vectors of grounded words, with this weight of the frozen score.

    Vectors get another weight.
    """
    words = model.adapter
    if isinstance(words, GroundedVectors):
        words = words.adapter
    if not isinstance(words, GroundedWords):
        raise UserError(
            f"expected grounded words with --vectors, got {type(words).__name__}: leave --vectors "
            "out"
        )
    adapter = GroundedVectors.of(words, model.backbone, frozen_weight)
    return Model(model.backbone, adapter, provenance=model.provenance)
