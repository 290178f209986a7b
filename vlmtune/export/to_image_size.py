"""A trained model that reads images at another size.

In: a model, a size. Out: another model with the same trained weights. Never: training.
"""

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import load_trained_state, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import instantiate
from vlmtune.model.model import Model


def to_image_size(model: Model, size: int) -> Model:
    """The model with images of size x size pixels, for pictures whose objects are small.

    A patch then covers less of the picture. Position embeddings are interpolated.
    """
    backbone_spec = model.backbone.spec()
    backbone_spec["init_args"]["image_size"] = size
    backbone = instantiate(backbone_spec, Backbone)
    adapter = instantiate(model.adapter.spec(), Adapter)
    adapter.attach(backbone)
    state = trained_state(model.backbone, model.adapter)
    load_trained_state(backbone, adapter, state, f"a model at {size} pixels")
    return Model(backbone, adapter, provenance=model.provenance)
