"""The trained weights that a run starts from.

In: another trained model of the same backbone and adapter. Out: its weights in this run's model.
Never: its optimizer or its steps; `vlmtune fit --ckpt-path` continues a run.
"""

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import load_trained_state, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import differences
from vlmtune.errors import UserError
from vlmtune.model.resolving import load


def start_from(name: str, backbone: Backbone, adapter: Adapter) -> None:
    """Gives the attached adapter the trained weights of a model; see `vlmtune.load` for names.

    Raises:
        UserError: The model has another backbone or another adapter.
    """
    model = load(name, device="cpu")
    other = differences(adapter.spec(), model.adapter.spec(), "adapter", name)
    # Both fingerprints were computed before training changed a weight.
    if model.backbone.fingerprint != backbone.fingerprint:
        other.append(f"{model.backbone.title}, or other weights of it, as the backbone")
    if other:
        raise UserError(
            f"expected with model.start_from a model of this backbone and adapter, got "
            f"{', '.join(other)}: set them as it was trained, or leave start_from out"
        )
    state = trained_state(model.backbone, model.adapter)
    load_trained_state(backbone, adapter, state, name)
